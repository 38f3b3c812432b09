"""The tutorial loop: torch's DataLoader and five lines, texts filled up to the greatest length, loss read every step."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.contest.pace import Pace
from benchmarks.contest.task import CLIP, RATE, Task


def train(task: Task, tuned: bool, pace: Pace, folder: Path) -> float:
    """Train; the validation accuracy."""
    model = task.network()
    batches = task.loader(task.data.train, tuned=False, padding=True)
    held = task.loader(task.data.validation, tuned=False, padding=True, train=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    accuracy, epoch = 0.0, 0
    while pace.live or epoch < task.epochs:
        model.train()
        running = 0.0
        for *inputs, labels in batches:
            optimizer.zero_grad()
            loss = task.loss(model(*inputs), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            running += loss.item()
            pace.step(task.amount(inputs, labels))
        epoch += 1
        if not pace.live:
            accuracy = task.score(model, held)
    torch.save(model.state_dict(), folder / "model.pt")
    return accuracy
