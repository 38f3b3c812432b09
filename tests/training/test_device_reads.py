"""No step of any kind of network reads a GPU: the host would stand still until the GPU has done all that it was given.

The network of a real run is moved to torch's `meta` device, whose tensors have a shape and no numbers. What would wait for
a GPU, because a program needs a number or a shape that depends on numbers, raises there. Copies that would wait, and
tensors that are made on the device out of numbers, are watched for; calls of torch.cuda that wait are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from drivetrain.data.load_data import load
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import inspection, packed_attention
from drivetrain.models.build import build
from drivetrain.optimizations import Value
from drivetrain.plan import plan
from drivetrain.training import loop, run
from drivetrain.training.assemble import Assembly
from drivetrain.training.updater import Updater
from tests import reports, tiny
from tests.training.wait_recorder import DEVICE, WaitRecorder

ATEN = torch.ops.aten
AUGMENT = (
    "augment: {flip: true, crop_padding: 2, randaugment: {num_ops: 2}, erasing: {probability: 0.5}, "
    "mixup: {alpha: 0.2}}"
)
IMAGES = "image-classification", f"{{train: a.npz, validation: 0.25, image_size: 16, {AUGMENT}}}"
SERIES = "series-classification", "{train: a.npz, validation: 0.25, augment: {mixup: {alpha: 0.2}}}"
TABLE = "tabular-classification", "{train: a.csv, target: kind, validation: 0.25}"
NETWORKS = {
    "mlp": (TABLE, "{name: mlp, hidden: [8, 8]}"),
    "tabm": (TABLE, "{name: tabm, members: 3, hidden: [8, 8]}"),
    "cnn-lstm": (SERIES, "{name: cnn-lstm, cnn_channels: [4], lstm_hidden: 8, dropout: 0.2}"),
    "small-cnn": (IMAGES, "{name: small-cnn, width: 4}"),
    "resnet18": (IMAGES, "{name: resnet18, width: 4}"),
    "resnet50": (IMAGES, "{name: resnet50, width: 4}"),
}


class DeviceReads(WaitRecorder):
    """Notes what waits for the device and does not raise on it."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if function is ATEN.copy_.default and args[0].device != args[1].device and not (args[2:] and args[2]):
            self.waits.append(f"{tuple(args[1].shape)} into {args[0].device}")
        if function is ATEN._efficient_attention_backward.default:  # torch derives the shapes of it wrongly
            return *(torch.empty_like(x) for x in args[1:4]), None
        return super().__torch_dispatch__(function, types, args, kwargs)


class NumbersSent(TorchFunctionMode):
    """Notes tensors that are made on the device out of numbers of the host, which is a copy that waits."""

    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor) and result.is_meta:
            self.waits.append(f"{tuple(result.shape)} made of numbers")
        return result


@pytest.fixture
def device_reads(monkeypatch: pytest.MonkeyPatch) -> DeviceReads:
    watched = DeviceReads()
    for name in ("synchronize", "Event.synchronize", "Stream.synchronize"):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_: watched.waits.append("synchronize"))
    return watched


def job(folder: Path, name: str) -> Job:
    """A small job with everything that works on the device: augmentation, mixing, clipping, dropout."""
    (task, data), model = NETWORKS[name]
    generator, labels = np.random.default_rng(0), np.arange(40) % 2
    if task == IMAGES[0]:
        np.savez(folder / "a.npz", images=generator.integers(0, 255, (40, 16, 16, 3), dtype=np.uint8), labels=labels)
    elif task == SERIES[0]:
        np.savez(folder / "a.npz", x=generator.normal(size=(40, 16, 6)).astype(np.float32), y=labels)
    else:
        rows = [f"{a:.3f},{b:.3f},{'uvw'[n % 3]},k{n % 2}" for n, (a, b) in enumerate(generator.normal(size=(40, 2)))]
        (folder / "a.csv").write_text("\n".join(["a,b,c,kind", *rows]) + "\n")
    train_section = "{epochs: 2, batch_size: 8, loss: {name: cross-entropy, label_smoothing: 0.1}}"
    (folder / "job.yaml").write_text(f"name: a\ntask: {task}\ndata: {data}\nmodel: {model}\ntrain: {train_section}\n")
    return job_spec.load(folder / "job.yaml")


def assemble_on_device(
    folder: Path, small_job: Job, settings: dict[str, Value], monkeypatch: pytest.MonkeyPatch
) -> run.Run:
    """A run of these settings whose network is on the device, as after its first update."""
    dataset = load(small_job)
    network = build(small_job, dataset)
    plain_plan = plan.resolve(
        small_job, tiny.machine(), inspection.inspect_workload(dataset, network.module), plain=True
    )
    device_run = Assembly(
        small_job, tiny.machine(), plain_plan.with_values(settings), folder, dataset, network, tiny.QuietSignals()
    ).assemble()
    device_run.device = DEVICE
    device_run.model.to(DEVICE)
    optimizer = torch.optim.AdamW(device_run.model.parameters(), fused=False)
    for group in optimizer.param_groups:
        group["fused"] = True
    for parameter in device_run.model.parameters():
        optimizer.state[parameter] = {"step": torch.zeros((), device=DEVICE)}
    # torch has no fused kernels for this device; they take a tensor that nobody reads.
    monkeypatch.setattr(optimizer, "step", lambda: None)
    device_run.optimizer = optimizer
    device_run.step.forward.device = DEVICE
    device_run.step.updater = Updater(device_run.model, optimizer, 1.0)
    device_run.step.updater.prefers_device = True
    device_run.train_mode()
    return device_run


def train_steps(device_run: run.Run, device_reads: DeviceReads) -> list[Any]:
    """The results of some steps, as the loop computes them."""
    results: list[Any] = []
    records: Any = SimpleNamespace(add=lambda result, rate: results.append(result))
    for _, batch in zip(range(3), device_run.batches.epoch(0), strict=False):
        with device_reads, NumbersSent(device_reads.waits):
            assert loop.train_step(device_run, records, batch) is results[-1]
        assert device_run.lockstep.held_error is None
    assert device_reads.results == len(results) == 3  # each is copied once, and that copy is queued, too
    return results


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_reads_nothing(
    name: str, tmp_path: Path, device_reads: DeviceReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    device_run = assemble_on_device(tmp_path, job(tmp_path, name), {}, monkeypatch)
    train_steps(device_run, device_reads)
    assert device_reads.waits == []


@pytest.mark.parametrize(
    ("value", "kernel", "model"),
    [
        ("packed", packed_attention.flash_attention, ", freeze: {embeddings: true, layers: 1}}"),
        ("packed", packed_attention.efficient_attention, "}"),
        ("packed", None, ", pooling: cls}"),
        (512, None, "}"),
        ("off", None, ", pooling: cls}"),
    ],
)
def test_a_step_of_texts_reads_nothing(
    model: str, value: Value, kernel: Any, tmp_path: Path, device_reads: DeviceReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded, cut by length, packed for a kernel, and packed in groups."""
    reports.write_reports(tmp_path)
    text_job = reports.job(tmp_path, model=reports.ENCODER[:-1] + model)
    device_run = assemble_on_device(tmp_path, text_job, {"unpadding": value}, monkeypatch)
    monkeypatch.setattr(packed_attention, "find_kernel", lambda hidden, width: kernel)
    train_steps(device_run, device_reads)
    assert device_reads.waits == []


@pytest.mark.parametrize("family", ["albert", "distilbert", "electra", "roberta"])
def test_a_step_of_a_pretrained_encoder_reads_nothing(
    family: str, tmp_path: Path, device_reads: DeviceReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder_folder = reports.save_encoder(tmp_path, family)
    text_job = reports.job(
        tmp_path, train="words/reports.csv", model=f"{{source: transformers, name: {encoder_folder}}}"
    )
    train_steps(assemble_on_device(tmp_path, text_job, {}, monkeypatch), device_reads)
    assert device_reads.waits == []


READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).all()),
    "int": lambda x: int(x.sum()),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "copy": lambda x: torch.zeros(3).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "boolean index": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x + 1),
    "is_nonzero": lambda x: x.sum().is_nonzero(),
    "repeat_interleave": lambda x: torch.repeat_interleave(x.long()),
    "as an index": lambda x: [1, 2, 3][x.sum().long()],
    "made of a list": lambda x: torch.as_tensor([1.0, 2.0], device=x.device),
    "made of numbers": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "put there": lambda x: torch.ones(3).to(x.device),
    "synchronize": lambda x: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("name", READS)
def test_every_path_that_waits_is_noticed(name: str, device_reads: DeviceReads) -> None:
    device_tensor = torch.zeros(3, device=DEVICE)
    try:
        with device_reads, NumbersSent(device_reads.waits):
            READS[name](device_tensor)
    except (RuntimeError, NotImplementedError, TypeError):
        return
    assert device_reads.waits
