"""Weights: files as the safetensors library writes them, without its copy of the whole file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from drivetrain.errors import CheckpointError
from drivetrain.models import safetensors_file
from tests.messages import saying


def make_tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    weight = torch.randn(4, 3, 2, 2)
    return {
        "weight": weight,
        "tied": weight,
        "part": weight[1:3, ::2],
        "last": weight.to(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 5).t(),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "yes": torch.tensor([True, False]),
        "half": torch.randn(3).half(),
        "brain": torch.randn(5).bfloat16(),
        "double": torch.randn(2).double(),
        "byte": torch.arange(7, dtype=torch.uint8),
        "short": torch.arange(3, dtype=torch.int16),
        "complex": torch.randn(2, dtype=torch.complex64),
        "eight": torch.randn(3).to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        'ä/ "name"': torch.ones(1),
    }


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    safetensors_file.write(tmp_path / "a.safetensors", make_tensors())
    tensors = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert tensors.keys() == make_tensors().keys()
    for name, value in make_tensors().items():
        assert (tensors[name].dtype, tensors[name].shape) == (value.dtype, value.shape), name
        assert torch.equal(
            tensors[name].view(torch.uint8) if value.ndim else tensors[name],
            value.detach().contiguous().view(torch.uint8) if value.ndim else value,
        ), name
    assert safetensors_file.read(tmp_path / "a.safetensors").keys() == tensors.keys()
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_same_bytes_as_the_library(tmp_path: Path) -> None:
    plain = {"b": torch.randn(3, 4), "a": torch.randn(5), "count": torch.tensor(7), "half": torch.randn(3).half()}
    safetensors_file.write(tmp_path / "ours", plain)
    assert (tmp_path / "ours").read_bytes() == safetensors.torch.save(plain)


def test_a_dtype_that_safetensors_does_not_support(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, check=saying("wave-type-complex128")):
        safetensors_file.write(tmp_path / "a", {"wave": torch.zeros(2, dtype=torch.complex128)})


def test_no_copy_of_the_file_is_made(tmp_path: Path) -> None:
    """The library held a second copy of all 64 MiB, in tensors of 4 MiB."""
    tensors = {f"{number}": torch.ones(1 << 20) for number in range(16)}
    tensors["0"] = torch.ones(1024, 1024).t()  # has to be copied to be written
    safetensors_file.write(tmp_path / "warm", {"a": torch.ones(3)})
    base, peak, done = _resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.0005):
            peak[0] = max(peak[0], _resident())

    thread = threading.Thread(target=watch)
    thread.start()
    safetensors_file.write(tmp_path / "a", tensors)
    done.set()
    thread.join()
    assert (tmp_path / "a").stat().st_size > 64 << 20
    assert peak[0] - base < 16 << 20


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
