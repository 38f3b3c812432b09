"""A program in a process with 32 MiB of /dev/shm."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from drivetrain.data.loader.batches import fetch_in_order
from tests import tiny


def small_shm(folder: str) -> None:
    """In a process with 32 MiB of /dev/shm: an evaluation whose batches take 24 MiB, with workers as planned or capped."""
    run = tiny.assemble_run(Path(folder), tiny.job())
    split = tiny.Arrays(torch.zeros(64, 1, 512, 768), torch.zeros(64).long())
    run.dataset = dataclasses.replace(run.dataset, validation=split)
    run.batches.workers = 2
    run.batches.report = lambda text: print("told:", text)
    for count, crew in ((16, run.batches.workers_for(split, 16)), (1, run.batches.workers_for(split, 1)), (16, 2)):
        samples = sum(len(batch) for batch in fetch_in_order(split, count, workers=crew, report=run.batches.report))
        print("workers", crew, "samples", samples)
