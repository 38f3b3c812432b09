"""The tutorial loop: torch's DataLoader and five lines, texts filled up to the greatest length, loss read every step."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.contest.pace import Pace
from benchmarks.contest.task import CLIP_NORM, LEARNING_RATE, Task


def train(task: Task, tuned: bool, pace: Pace, folder: Path) -> float:
    """Train; the validation accuracy."""
    model = task.build_network()
    batches = task.make_loader(task.data.train, tuned=False, padding=True)
    validation_batches = task.make_loader(task.data.validation, tuned=False, padding=True, train=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    accuracy, epoch = 0.0, 0
    while pace.has_orders or epoch < task.epochs:
        model.train()
        epoch_loss = 0.0
        for *inputs, labels in batches:
            optimizer.zero_grad()
            loss = task.compute_loss(model(*inputs), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            epoch_loss += loss.item()
            pace.end_step(task.count_samples(inputs, labels))
        epoch += 1
        if not pace.has_orders:
            accuracy = task.score_model(model, validation_batches)
    torch.save(model.state_dict(), folder / "model.pt")
    return accuracy
