"""The host never waits for a GPU within a step; it reads the result of a step after queueing the next one.

Shown on torch's `meta` device, whose tensors have a shape and no numbers: where a program would have to wait, to read a
number or to learn a shape, such a tensor raises. Copies to the device are watched for those that would wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data.dataset import Batch
from drivetrain.distributed.batch_sharding import BatchShare
from drivetrain.job.data import ColorJitter, Cutmix, Erasing, ImageAugment, Mixup, RandAugment, ResizedCrop
from drivetrain.job.train import CrossEntropy, Focal, Fp16
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.tasks.image.augment import Augment
from drivetrain.tasks.image.preprocess import ImagePreprocessing
from drivetrain.training import ema, losses
from drivetrain.training.losses import Spec
from drivetrain.training.step import Step
from drivetrain.training.updater import Updater
from tests import tiny
from tests.data.mixed_batch import mix_batch
from tests.training.wait_recorder import DEVICE, WaitRecorder

CLASSES = 2
EVERYTHING = ImageAugment(
    flip=True,
    crop_padding=2,
    resized_crop=ResizedCrop(),
    randaugment=RandAugment(num_ops=8),
    color_jitter=ColorJitter(brightness=0.5, contrast=0.5, saturation=0.5),
    erasing=Erasing(probability=0.5),
)


@pytest.fixture
def gpu() -> Iterator[WaitRecorder]:
    with WaitRecorder() as watched:
        yield watched


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.Dropout(0.1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(144, CLASSES),
    ).to(DEVICE)


def batch() -> Batch:
    return Batch(np.arange(12), (torch.zeros(12, 3, 8, 8, dtype=torch.uint8),), {"": torch.arange(12) % CLASSES})


def test_a_copy_that_synchronizes_is_detected(gpu: WaitRecorder) -> None:
    torch.zeros(3).to(DEVICE)
    torch.zeros(3).to(DEVICE, non_blocking=True)
    assert (gpu.copies, gpu.waits) == (2, ["(3,) to meta"])
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        torch.zeros(3, device=DEVICE).sum().item()


def test_a_batch_is_prepared_and_mixed_without_waiting(gpu: WaitRecorder) -> None:
    preparer = ImagePreprocessing(8, 3, ("a", "b"), 0, 255, (0.5,) * 3, (0.2,) * 3, Augment(EVERYTHING, 0, (0.5,) * 3))
    device_batch = batch().to(DEVICE)
    (pixels,) = preparer(device_batch.inputs, device_batch.ids, 0)
    for option in ({"mixup": Mixup()}, {"cutmix": Cutmix()}):
        (mixed,), soft = mix_batch((pixels,), device_batch.targets, tiny.dataset(classes=CLASSES).heads, 0, 0, **option)
        assert (mixed.shape, soft[""].shape) == ((12, 3, 8, 8), (12, CLASSES))
    assert gpu.copies > 10
    assert gpu.waits == []


@pytest.mark.parametrize("micro_batch", [None, 5])
@pytest.mark.parametrize("loss", [CrossEntropy(name="cross-entropy"), Focal(name="focal", alpha=0.3)])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, partial(torch.optim.SGD, momentum=0.9)], ids=["adamw", "sgd"])
def test_steps_do_not_wait_for_the_gpu(
    gpu: WaitRecorder, monkeypatch: pytest.MonkeyPatch, kind: Any, loss: Spec, micro_batch: int | None, scaled: bool
) -> None:
    """A meta tensor has no numbers: a step that reads one of its results would fail."""
    dataset, model = tiny.dataset(classes=CLASSES), network()
    objective = losses.build_objective(loss, dataset.heads, dataset.train.targets, "balanced")
    step = Step(ForwardPass(model, objective, DEVICE), Updater(model, kind(model.parameters(), lr=0.1), 1.0))
    updates: list[bool] = []
    for group in step.updater.optimizer.param_groups:
        group["fused"] = True
    for parameter in model.parameters():
        step.updater.optimizer.state[parameter] = {"step": torch.zeros((), device=DEVICE)}  # as after a first update
    # torch has no fused kernels for this device; what they take is a tensor that nobody reads.
    optimizer: Any = step.updater.optimizer
    monkeypatch.setattr(optimizer, "step", lambda: updates.append(optimizer.found_inf.is_meta))
    step.use_micro_batch(micro_batch)
    step.updater.prefers_device = True
    if scaled:
        step.scale_losses(Fp16())
    monkeypatch.setattr(ema, "_is_finite", torch.is_floating_point)  # read once, before the first step
    average = ema.Ema(model, 0.9)
    device_batch = batch().to(DEVICE)
    prepared_batch = Batch(device_batch.ids, (device_batch.inputs[0].float(),), device_batch.targets)
    gpu.waits.clear()  # those of building the network
    for number in range(3):
        average.update(model, step(prepared_batch, BatchShare(seed=number)).finite_on_device)
    assert updates == [True] * 3
    # A step's result is copied to the host once, and that copy is queued, too.
    assert (gpu.waits, gpu.results) == ([], 3)


def test_a_step_that_reads_its_result_fails_on_the_meta_device() -> None:
    """The test above can fail: without `on_device` the host looks at the result before the update."""
    dataset, model = tiny.dataset(classes=CLASSES), network()
    objective = losses.build_objective(CrossEntropy(name="cross-entropy"), dataset.heads, dataset.train.targets, "none")
    step = Step(ForwardPass(model, objective, DEVICE), Updater(model, torch.optim.AdamW(model.parameters()), None))
    device_batch = batch().to(DEVICE)
    with pytest.raises(RuntimeError, match="meta tensor"):
        step(Batch(device_batch.ids, (device_batch.inputs[0].float(),), device_batch.targets))
