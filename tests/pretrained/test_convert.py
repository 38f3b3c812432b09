"""Pickle checkpoints become safetensors; what they ask to run is not run."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from drivetrain.errors import DataError, StorageError
from drivetrain.pretrained import convert, unpickle_process
from tests.axes import each_once
from tests.messages import says
from tests.paths import ROOT

A, B = torch.arange(6.0).view(2, 3), torch.ones(3)


def test_a_training_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrapped twice, beside an optimizer, with a transposed and a tied weight."""
    tensors = OrderedDict({"module.model.a": A, "module.model.b": A.t(), "module.model.tied": A})
    torch.save({"epoch": 3, "state_dict": tensors, "optimizer": {"lr": 0.1}}, tmp_path / "best_model.bin")
    torch.save({"lr": 0.1}, tmp_path / "training_args.bin")
    convert.convert_local(tmp_path)
    converted = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert set(converted) == {"a", "b", "tied"}
    assert torch.equal(converted["a"], A)
    assert torch.equal(converted["b"], A.t())
    assert torch.equal(converted["tied"], A)
    assert "best_model.bin" in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 3
    convert.convert_local(tmp_path)
    assert capsys.readouterr().out == ""


def test_a_folder_with_weights_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert convert.find_target(Path()) is None
    torch.save({"a": A}, tmp_path / "old.bin")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert convert.find_target(Path()) is None


def test_a_file_that_a_job_names(tmp_path: Path) -> None:
    """As older releases of torch wrote it, which cannot be mapped into memory; it lies beside other weights."""
    torch.save({"a": A}, tmp_path / "best.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    convert.convert_local(tmp_path / "best.pt")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "best.safetensors")["a"], A)
    assert convert.find_target(tmp_path) is None
    assert convert.find_target(tmp_path / "best.pt") is None


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"a": A, "b": B}, {"a", "b"}),
        ({"module.a": A, "module.b": B}, {"a", "b"}),
        ({"module.a": A, "b": B}, {"module.a", "b"}),
        ({"_orig_mod.model.a": A}, {"a"}),
        ({"state_dict": {"model.bert.a": A}, "hparams": {"lr": 1}}, {"bert.a"}),
        ({"model": {"state_dict": {"a": A}}, "step": 1}, {"a"}),
        ({"model": A}, {"model"}),
    ],
)
def test_names(data: dict[str, Any], names: set[str]) -> None:
    assert set(unpickle_process.name_tensors(data)) == names


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": A, "epoch": 3}, r"contains epoch \(int\) instead of tensors by name"),
        ({"a": [A, B]}, r"a \(list\)"),
        ({"encoder": {"a": A}}, r"encoder \(dict\)"),
        ([A, B], r"contains list \(list\)"),
        (A, "contains nothing"),
        ({}, "contains nothing"),
    ],
)
def test_factories_that_return_no_network(tmp_path: Path, data: Any, message: str) -> None:
    torch.save(data, tmp_path / "a.pt")
    with pytest.raises(DataError, match=message) as caught:
        convert.convert_local(tmp_path / "a.pt")
    assert "torch.save(model.state_dict(), FILE)" in caught.value.action


def test_tensors_of_other_kinds(tmp_path: Path) -> None:
    torch.save({"a": A.to_sparse()}, tmp_path / "a.pt")
    with pytest.raises(DataError, match="is not a pickle of tensors"):
        convert.convert_local(tmp_path / "a.pt")


class Calls:
    """Pickled, it is a call of a function."""

    def __init__(self, function: Any, *arguments: str) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def payloads(canary: Path) -> dict[str, bytes | Any]:
    command = f"touch {canary}"
    text = f"open({str(canary)!r}, 'w')"
    return {
        "os.system in a dict": {"a": A, "b": Calls(os.system, command)},
        "os.system alone": Calls(os.system, command),
        "eval": Calls(eval, text),
        "exec": Calls(exec, text),
        "subprocess": {"a": Calls(subprocess.getoutput, command)},
        "a class of torch": Calls(torch.hub.load_state_dict_from_url, "http://127.0.0.1:9/x"),
        "a bare pickle": pickle.dumps(Calls(os.system, command)),
        "protocol 0": f"cposix\nsystem\n(S'{command}'\ntR.".encode(),
    }


@pytest.mark.parametrize(("case", "zipped"), each_once(payloads(Path()), [True, False]))
def test_nothing_is_run(tmp_path: Path, case: str, zipped: bool) -> None:
    canary, file = tmp_path / "canary", tmp_path / "model.bin"
    payload = payloads(canary)[case]
    if isinstance(payload, bytes):
        file.write_bytes(payload)
    else:
        torch.save(payload, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(Exception, match="weights_only") as caught:
        torch.load(file, weights_only=True)
    assert not canary.exists()
    reason = unpickle_process.describe(caught.value)
    assert "executed" in reason
    assert "weights_only" not in reason


def test_the_payloads_would_run(tmp_path: Path) -> None:
    """Read as any pickle is, they do what they say: the canary is a canary."""
    pickle.loads(payloads(tmp_path / "canary")["a bare pickle"])
    assert (tmp_path / "canary").exists()


def test_a_malicious_file_is_refused_from_end_to_end(tmp_path: Path) -> None:
    torch.save({"a": A, "b": Calls(os.system, f"touch {tmp_path / 'canary'}")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError) as caught:
        convert.convert_local(tmp_path)
    assert says(str(caught.value), "refers-tensor-executed", "posix.system")
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and no more", b"\x80\x02}q\x00."])
def test_files_that_are_no_checkpoints(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(DataError) as caught:
        convert.convert_local(tmp_path)
    assert "executed" in caught.value.given or "contains nothing" in caught.value.given
    assert caught.value.possible
    assert caught.value.action
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Not even a file that appeared meanwhile."""
    torch.save({"a": A}, tmp_path / "best_model.bin")
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    with pytest.raises(StorageError, match="exists"):
        convert.convert(tmp_path / "best_model.bin", tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == b"mine"
    assert len(list(tmp_path.iterdir())) == 2


def run_apart(code: str) -> subprocess.CompletedProcess[str]:
    """Run a line in a process of its own."""
    program = f"from drivetrain.pretrained import unpickle_process\n{code}"
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_reading_process_is_limited() -> None:
    process = run_apart(
        "unpickle_process.set_limits(1000); bytearray(unpickle_process.SPARE_MEMORY_BYTES + (64 << 20))"
    )
    assert "MemoryError" in process.stderr
