"""Lightning: a LightningModule and a Trainer, as its documentation shows; or with all that an expert would set.

The documentation's text example fills every text up to the greatest length.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch

from benchmarks.contest.pace import Pace
from benchmarks.contest.task import CLIP_NORM, LEARNING_RATE, Task

FOREVER = 1_000_000


class Module(lightning.LightningModule):
    """The network with its step."""

    def __init__(self, task: Task, tuned: bool) -> None:
        super().__init__()
        self.task, self.tuned, self.model = task, tuned, task.build_network()
        if tuned and task.has_images:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = self._loss(batch)
        if not self.tuned:
            self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        *inputs, labels = batch
        outputs = self.model(*inputs)
        self.log("accuracy", self.task.count_right(outputs, labels) / len(labels), batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        # Lightning refuses to clip gradients for a fused optimizer under mixed precision.
        fused = True if self.tuned and self.task.precision == "fp32" else None
        return torch.optim.AdamW(trainable, lr=LEARNING_RATE, weight_decay=0.0, fused=fused)

    def _loss(self, batch: Any) -> torch.Tensor:
        *inputs, labels = batch
        if self.tuned and self.task.has_images:
            inputs = [inputs[0].contiguous(memory_format=torch.channels_last)]
        return self.task.compute_loss(self.model(*inputs), labels)


class PaceCallback(lightning.Callback):
    """Hands the end of each step to the pace."""

    def __init__(self, task: Task, pace: Pace) -> None:
        self.task, self.pace = task, pace

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        self.pace.end_step(self.task.count_samples(batch[:-1], batch[-1]))


def train(task: Task, tuned: bool, pace: Pace, folder: Path) -> float:
    """Train; the validation accuracy."""
    settings: dict[str, Any] = {
        "max_epochs": FOREVER if pace.has_orders else task.epochs,
        "accelerator": "cpu",
        "gradient_clip_val": CLIP_NORM,
        "default_root_dir": folder,
        "callbacks": [PaceCallback(task, pace)],
    }
    if pace.has_orders or tuned:
        settings["enable_checkpointing"] = False
    if tuned:
        settings |= {
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "precision": {"bf16": "bf16-mixed"}.get(task.precision),
        }
    module, trainer = Module(task, tuned), lightning.Trainer(**settings)
    loaders = [task.make_loader(task.data.train, tuned=tuned, padding=not tuned)]
    if not pace.has_orders:
        loaders.append(task.make_loader(task.data.validation, tuned=tuned, padding=not tuned, train=False))
    trainer.fit(module, *loaders)
    torch.save(module.model.state_dict(), folder / "model.pt")
    return float(trainer.callback_metrics["accuracy"])
