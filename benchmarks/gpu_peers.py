"""Other trainers on the network and data of a row, set as an expert sets them; both are optional."""

from __future__ import annotations

import inspect
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_reference import CUDA, DEVICE, Task, first_tensor, load_task, synchronize
from torch import Tensor, nn
from torch.nn import functional

Figures = dict[str, Any]
WARM_UP_STEPS = 15 if CUDA else 3
"""Steps before the clock starts."""


class StepClock:
    """Counts steps, samples and real tokens from the WARM-th step on."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.steps, self.samples, self.tokens, self.start = seconds, 0, 0, 0, 0.0

    def count(self, samples: int, tokens: int) -> bool:
        """Count a step; returns whether the time is over."""
        self.steps += 1
        if self.steps == WARM_UP_STEPS:
            synchronize()
            self.start = time.perf_counter()
        elif self.steps > WARM_UP_STEPS:
            self.samples, self.tokens = self.samples + samples, self.tokens + tokens
            return time.perf_counter() - self.start > self.seconds
        return False

    def figures(self) -> Figures:
        """Speeds since the clock has started."""
        synchronize()
        elapsed = time.perf_counter() - self.start
        figures: Figures = {"samples_per_second": self.samples / elapsed, "steps": self.steps}
        return figures | ({"real_tokens_per_second": self.tokens / elapsed} if self.tokens else {})


def measure_lightning(path: Path, level: str, seconds: float) -> Figures:
    """Lightning with bf16-mixed, channels_last, fused AdamW, compiled for images; samples are gathered by batch from the
    device's memory, texts padded to the longest of sorted neighbours.
    """
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    task, clock = load_task(path), StepClock(seconds)
    inner = torch.compile(task.model) if task.has_images and CUDA else task.model

    class Batches(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return _device_batches(task)

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.network = task.model

        def training_step(self, batch: Any, number: int) -> Tensor:
            inputs, targets, _ = batch
            return functional.cross_entropy(first_tensor(inner(*task.prepare(inputs, None))).float(), targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.network.parameters(), lr=task.job.train.optimizer.lr, fused=CUDA)

    class ClockCallback(lightning.Callback):  # type: ignore[misc, name-defined, unused-ignore]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            trainer.should_stop |= clock.count(len(batch[1]), batch[2])

    trainer = lightning.Trainer(
        accelerator="auto", devices=1, precision="bf16-mixed", benchmark=task.has_images or None, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, max_epochs=10_000,
        min_steps=WARM_UP_STEPS + 2, callbacks=[ClockCallback()], num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(Batches(), batch_size=None))
    return clock.figures() | {"note": "without clipping, which Lightning refuses for fused updates in mixed precision"}


def _device_batches(task: Task) -> Iterator[tuple[tuple[Tensor, ...], Tensor, int]]:
    """Inputs, targets and real tokens of the batches of an epoch."""
    order, lengths = torch.randperm(len(task.targets)), task.lengths
    groups = order.split(task.batch)
    if lengths is not None:  # fifty batches are sorted by length at a time
        large = order.split(50 * task.batch)
        groups = [ids for part in large for ids in part[lengths[part].argsort()].split(task.batch)]
    for ids in groups:
        if len(ids) == task.batch:
            rows = ids.to(DEVICE)
            inputs = tuple(x.index_select(0, rows) for x in task.inputs)
            if lengths is not None:
                inputs = tuple(x[:, : int(lengths[ids].max())] for x in inputs)
            yield inputs, task.targets.index_select(0, rows), int(lengths[ids].sum()) if lengths is not None else 0


def measure_huggingface(path: Path, level: str, seconds: float) -> Figures:
    """Hugging Face's Trainer on texts; `tuned` is bf16, fused, workers, grouped by length."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    task, clock = load_task(path), StepClock(seconds)
    assert task.lengths is not None, "for texts"
    inputs, targets = task.inputs[0].cpu(), task.targets.cpu()
    lengths = task.lengths.tolist()
    rows = [
        {"input_ids": inputs[n, :length], "labels": targets[n], "length": length} for n, length in enumerate(lengths)
    ]
    mean_tokens = round(sum(lengths) / len(lengths) * task.batch)

    class ClockCallback(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **keywords: Any) -> None:  # type: ignore[override]
            control.should_training_stop |= clock.count(task.batch, mean_tokens)

    arguments = TrainingArguments(
        str(path.parent / "huggingface"), per_device_train_batch_size=task.batch, num_train_epochs=1000,
        logging_strategy="no", save_strategy="no", report_to=[], remove_unused_columns=False, disable_tqdm=True,
        learning_rate=task.job.train.optimizer.lr, lr_scheduler_type="constant", use_cpu=not CUDA,
        **(_tuned_arguments(TrainingArguments) if level == "tuned" else {}),
    )  # fmt: skip
    Trainer(
        NetworkWithLoss(task.model), arguments, data_collator=_pad_rows, train_dataset=rows, callbacks=[ClockCallback()]
    ).train()
    return clock.figures()


class NetworkWithLoss(nn.Module):
    """A network in the form that the Trainer of transformers takes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss and outputs of a batch."""
        outputs = first_tensor(self.network(input_ids, attention_mask))
        return {"loss": functional.cross_entropy(outputs.float(), labels), "logits": outputs}


def _pad_rows(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    ids = nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    lengths = torch.tensor([row["length"] for row in rows])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.stack([row["labels"] for row in rows])}


def _tuned_arguments(arguments_class: type) -> dict[str, Any]:
    tuned: dict[str, Any] = {"bf16": CUDA, "optim": "adamw_torch_fused", "dataloader_num_workers": 4 if CUDA else 0}
    names = inspect.signature(arguments_class).parameters
    grouped = (
        {"group_by_length": True} if "group_by_length" in names else {"train_sampling_strategy": "group_by_length"}
    )
    return tuned | grouped


PEERS: dict[str, Callable[[Path, str, float], Figures]] = {
    "lightning": measure_lightning,
    "huggingface": measure_huggingface,
}
