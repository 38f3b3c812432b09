"""The host waits for a GPU once in a step, when it reads what the step gave.

Shown on torch's `meta` device, whose tensors have a shape and no numbers: where a program would have to wait, to read a
number or to learn a shape, such a tensor raises. Copies to the device are watched for those that would wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.data import mixup
from runtime.data.dataset import Batch
from runtime.data.images.augment import Augment
from runtime.data.images.preprocess import ImagePreprocessing
from runtime.job.data import ColorJitter, Cutmix, Erasing, ImageAugment, Mixup, RandAugment, ResizedCrop
from runtime.job.train import CrossEntropy, Focal, Fp16
from runtime.training import losses, step
from runtime.training.grad_scaler import Scaler
from runtime.training.losses import Spec
from runtime.training.step import Step
from runtime.training.step_options import StepOptions
from runtime.training.step_result import StepResult
from tests import tiny

DEVICE = torch.device("meta")
CLASSES = 2
EVERYTHING = ImageAugment(
    flip=True,
    crop_padding=2,
    resized_crop=ResizedCrop(),
    randaugment=RandAugment(num_ops=8),
    color_jitter=ColorJitter(brightness=0.5, contrast=0.5, saturation=0.5),
    erasing=Erasing(probability=0.5),
)


class Watched(TorchDispatchMode):
    """Notes every copy to the device that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.copies, self.waits = 0, list[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        target = kwargs.get("device")
        if function is torch.ops.aten._to_copy.default and target is not None and args[0].device != target:
            self.copies += 1
            if not kwargs.get("non_blocking"):
                self.waits.append(f"{tuple(args[0].shape)} to {target}")
        return function(*args, **kwargs)


@pytest.fixture
def gpu() -> Iterator[Watched]:
    with Watched() as watched:
        yield watched


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers were read at a time."""
    found: list[int] = []

    def read(*values: torch.Tensor) -> StepResult:
        found.append(len(values))
        return StepResult(1.0, 1.0, True)

    monkeypatch.setattr(step, "outcome_of", read)
    return found


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


def test_a_copy_that_synchronizes_is_detected(gpu: Watched) -> None:
    torch.zeros(3).to(DEVICE)
    torch.zeros(3).to(DEVICE, non_blocking=True)
    assert (gpu.copies, gpu.waits) == (2, ["(3,) to meta"])
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        torch.zeros(3, device=DEVICE).sum().item()


def test_a_batch_is_prepared_and_mixed_without_waiting(gpu: Watched) -> None:
    preparer = ImagePreprocessing(8, 3, ("a", "b"), 0, 255, (0.5,) * 3, (0.2,) * 3, Augment(EVERYTHING, 0, (0.5,) * 3))
    here = batch().to(DEVICE)
    (pixels,) = preparer(here.inputs, here.ids, 0)
    for option in ({"mixup": Mixup()}, {"cutmix": Cutmix()}):
        (mixed,), soft = mixup.mixed((pixels,), here.targets, tiny.dataset(classes=CLASSES).heads, 0, 0, **option)  # type: ignore[arg-type]
        assert (mixed.shape, soft[""].shape) == ((12, 3, 8, 8), (12, CLASSES))
    assert gpu.copies > 10
    assert gpu.waits == []


@pytest.mark.parametrize("micro_batch", [None, 5])
@pytest.mark.parametrize("loss", [CrossEntropy(name="cross-entropy"), Focal(name="focal", alpha=0.3)])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_synchronizes_with_the_gpu_once(
    tmp_path: Path, gpu: Watched, reads: list[int], loss: Spec, micro_batch: int | None, scaled: bool
) -> None:
    data, model = tiny.dataset(classes=CLASSES), network()
    goal = losses.objective(loss, data.heads, data.train.targets, "balanced")
    made = Step(
        model, torch.optim.AdamW(model.parameters(), fused=False, foreach=False), goal, 1.0, DEVICE, StepOptions(model)
    )
    made.use_micro_batch(micro_batch)
    if scaled:
        made = made.configured(scaler=Scaler(Fp16()))
    here = batch().to(DEVICE)
    ready = Batch(here.ids, (here.inputs[0].float(),), here.targets)
    gpu.waits.clear()  # those of building the network
    for number in range(2):
        assert made(ready, number).finite
    assert reads == [2, 2]
    assert gpu.waits == []
