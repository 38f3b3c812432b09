"""Hugging Face: its Trainer for texts, an Accelerate loop for the rest, as documented; or with what an expert would set.

The documentation fills texts up to the longest of their batch; the tuned form groups texts of like length as well.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.contest.pace import Pace
from benchmarks.contest.task import CLIP_NORM, LEARNING_RATE, Task, pad_batch

FOREVER = 1_000_000


class MixedGroups(torch.utils.data.Sampler[int]):
    """Batches of like length, in random order: the Trainer's sampler begins with the longest texts, and the few steps of a
    measurement would see no others.

    Args:
        sampler: the Trainer's sampler.
        batch_size: samples of a batch.
    """

    def __init__(self, sampler: torch.utils.data.Sampler[int], batch_size: int) -> None:
        self.sampler, self.batch_size = sampler, batch_size

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        ids = list(self.sampler)
        groups = [ids[i : i + self.batch_size] for i in range(0, len(ids), self.batch_size)]
        *full_groups, last_group = groups if len(groups[-1]) < self.batch_size else [*groups, []]
        random.shuffle(full_groups)
        return itertools.chain(*full_groups, last_group)


def train(task: Task, tuned: bool, pace: Pace, folder: Path) -> float:
    """Train; the validation accuracy."""
    return (
        train_with_trainer(task, tuned, pace, folder)
        if task.has_texts
        else train_with_accelerate(task, tuned, pace, folder)
    )


def train_with_accelerate(task: Task, tuned: bool, pace: Pace, folder: Path) -> float:
    """The loop of Accelerate's documentation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if tuned and task.precision == "bf16" else "no")
    model: Any = task.build_network()
    layout = torch.channels_last if tuned and task.has_images else None
    if layout:
        model = model.to(memory_format=layout)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer: Any = torch.optim.AdamW(trainable, lr=LEARNING_RATE, weight_decay=0.0, fused=True if tuned else None)
    batches = task.make_loader(task.data.train, tuned=tuned, padding=False)
    validation_batches = task.make_loader(task.data.validation, tuned=tuned, padding=False, train=False)
    model, optimizer, batches, validation_batches = accelerator.prepare(model, optimizer, batches, validation_batches)
    accuracy, epoch = 0.0, 0
    while pace.has_orders or epoch < task.epochs:
        model.train()
        for *inputs, labels in batches:
            optimizer.zero_grad()
            if layout:
                inputs = [inputs[0].contiguous(memory_format=layout)]
            loss = task.compute_loss(model(*inputs), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            pace.end_step(task.count_samples(inputs, labels))
        epoch += 1
        if not pace.has_orders:
            accuracy = task.score_model(model, validation_batches)
    accelerator.save_model(model, folder)
    return accuracy


class NetworkWithLoss(nn.Module):
    """The network as the Trainer wants it: a loss beside the outputs."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network, self.task, self.tokens = task.build_network(), task, 0

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, Any]:
        self.tokens = int(attention_mask.sum())
        outputs = self.network(input_ids, attention_mask)
        predictions = torch.stack([x.argmax(1) for x in outputs.values()], dim=1)
        return {"loss": self.task.compute_loss(outputs, labels), "logits": predictions}


class TextDataset(torch.utils.data.Dataset[Any]):
    """Texts under the names that the Trainer takes."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids, labels = self.samples[index]
        return {"input_ids": ids, "labels": labels}


def train_with_trainer(task: Task, tuned: bool, pace: Pace, folder: Path) -> float:
    """transformers.Trainer."""
    import transformers

    class PaceCallback(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            pace.end_step(network.tokens)

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        names = "input_ids", "attention_mask", "labels"
        pairs = [(sample["input_ids"], sample["labels"]) for sample in samples]
        return dict(zip(names, pad_batch(pairs, task.data.train.pad, None), strict=True))  # type: ignore[attr-defined]

    run_settings: dict[str, Any] = {"eval_strategy": "epoch"}
    if pace.has_orders:
        run_settings = {"max_steps": FOREVER, "save_strategy": "no", "dataloader_drop_last": True}
    if tuned:
        run_settings |= {
            "train_sampling_strategy": "group_by_length",
            "bf16": task.precision == "bf16",
            "disable_tqdm": True,
            "save_strategy": "no",
            "logging_strategy": "no",
        }
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=task.batch_size,
        num_train_epochs=task.epochs,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=CLIP_NORM,
        use_cpu=True,
        report_to="none",
        **run_settings,
    )

    class MeasuredTrainer(transformers.Trainer):
        def _get_train_sampler(self, *arguments: Any) -> Any:
            sampler = super()._get_train_sampler(*arguments)
            return MixedGroups(sampler, task.batch_size) if tuned and pace.has_orders else sampler  # type: ignore[arg-type]

    network = NetworkWithLoss(task)
    trainer = MeasuredTrainer(
        network,
        settings,
        collate,
        TextDataset(task.make_dataset(task.data.train)),
        TextDataset(task.make_dataset(task.data.validation)),
        callbacks=[PaceCallback()],
        compute_metrics=lambda evaluation: {"accuracy": float((evaluation.predictions == evaluation.label_ids).mean())},
    )
    trainer.train()
    trainer.save_model(str(folder))
    return float(trainer.evaluate()["eval_accuracy"])
