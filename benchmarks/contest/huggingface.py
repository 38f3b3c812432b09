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
from benchmarks.contest.task import CLIP, RATE, Task, padded

FOREVER = 1_000_000


class MixedGroups(torch.utils.data.Sampler[int]):
    """Batches of like length, in random order: the Trainer's sampler begins with the longest texts, and the few steps of a
    measurement would see no others.

    Args:
        grouped: the Trainer's sampler.
        batch: samples of a batch.
    """

    def __init__(self, grouped: torch.utils.data.Sampler[int], batch: int) -> None:
        self.grouped, self.batch = grouped, batch

    def __len__(self) -> int:
        return len(self.grouped)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        ids = list(self.grouped)
        groups = [ids[i : i + self.batch] for i in range(0, len(ids), self.batch)]
        *whole, rest = groups if len(groups[-1]) < self.batch else [*groups, []]
        random.shuffle(whole)
        return itertools.chain(*whole, rest)


def train(task: Task, tuned: bool, pace: Pace, folder: Path) -> float:
    """Train; the validation accuracy."""
    return trainer(task, tuned, pace, folder) if task.texts else accelerated(task, tuned, pace, folder)


def accelerated(task: Task, tuned: bool, pace: Pace, folder: Path) -> float:
    """The loop of Accelerate's documentation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if tuned and task.precision == "bf16" else "no")
    model: Any = task.network()
    layout = torch.channels_last if tuned and task.images else None
    if layout:
        model = model.to(memory_format=layout)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer: Any = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0, fused=True if tuned else None)
    batches = task.loader(task.data.train, tuned=tuned, padding=False)
    held = task.loader(task.data.validation, tuned=tuned, padding=False, train=False)
    model, optimizer, batches, held = accelerator.prepare(model, optimizer, batches, held)
    accuracy, epoch = 0.0, 0
    while pace.live or epoch < task.epochs:
        model.train()
        for *inputs, labels in batches:
            optimizer.zero_grad()
            if layout:
                inputs = [inputs[0].contiguous(memory_format=layout)]
            loss = task.loss(model(*inputs), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            pace.step(task.amount(inputs, labels))
        epoch += 1
        if not pace.live:
            accuracy = task.score(model, held)
    accelerator.save_model(model, folder)
    return accuracy


class Network(nn.Module):
    """The network as the Trainer wants it: a loss beside the outputs."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network, self.task, self.tokens = task.network(), task, 0

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, Any]:
        self.tokens = int(attention_mask.sum())
        outputs = self.network(input_ids, attention_mask)
        found = torch.stack([x.argmax(1) for x in outputs.values()], dim=1)
        return {"loss": self.task.loss(outputs, labels), "logits": found}


class Reports(torch.utils.data.Dataset[Any]):
    """Texts by the names that the Trainer knows."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids, labels = self.samples[index]
        return {"input_ids": ids, "labels": labels}


def trainer(task: Task, tuned: bool, pace: Pace, folder: Path) -> float:
    """transformers.Trainer."""
    import transformers

    class Stops(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            pace.step(network.tokens)

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        names = "input_ids", "attention_mask", "labels"
        pairs = [(one["input_ids"], one["labels"]) for one in samples]
        return dict(zip(names, padded(pairs, task.data.train.pad, None), strict=True))  # type: ignore[attr-defined]

    more: dict[str, Any] = {"eval_strategy": "epoch"}
    if pace.live:
        more = {"max_steps": FOREVER, "save_strategy": "no", "dataloader_drop_last": True}
    if tuned:
        more |= {
            "train_sampling_strategy": "group_by_length",
            "bf16": task.precision == "bf16",
            "disable_tqdm": True,
            "save_strategy": "no",
            "logging_strategy": "no",
        }
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=task.batch,
        num_train_epochs=task.epochs,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=CLIP,
        use_cpu=True,
        report_to="none",
        **more,
    )

    class Measured(transformers.Trainer):
        def _get_train_sampler(self, *given: Any) -> Any:
            found = super()._get_train_sampler(*given)
            return MixedGroups(found, task.batch) if tuned and pace.live else found

    network = Network(task)
    made = Measured(
        network,
        settings,
        collate,
        Reports(task.samples(task.data.train)),
        Reports(task.samples(task.data.validation)),
        callbacks=[Stops()],
        compute_metrics=lambda found: {"accuracy": float((found.predictions == found.label_ids).mean())},
    )
    made.train()
    made.save_model(str(folder))
    return float(made.evaluate()["eval_accuracy"])
