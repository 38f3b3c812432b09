"""Stand: a contender's process.

python -m benchmarks.contest.stand KIND JOB FOLDER [--tuned] [--precision bf16] [--cached] [--whole]

It answers in lines of JSON: one when it stands, then one for each order. With --whole it trains from the job's start to
its end, and tells the score.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from benchmarks.contest.pace import ROUGH, Ordered, Pace, answers, serve

PEERS = {"tutorial": "tutorial", "lightning": "lightning_trainer", "huggingface": "huggingface"}
WARM = 2 + ROUGH
SLOW = 5e9
"""Operations per second of a format that is emulated; a chip that has it computes ten times as many at least."""


def main() -> None:
    """Be the contender until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("job", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--cached", action="store_true")
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    pipe = answers()
    if given.kind == "gemm":
        gemm(pipe)
    elif given.kind == "drivetrain":
        drivetrain(given, pipe)
    elif given.kind == "sol":
        sol(given, pipe)
    else:
        peer(given, pipe)


def gemm(pipe: TextIO) -> None:
    """Matrix products of 2048, in fp32 and bf16: the denominator; of 256 where the chip lacks the format and torch needs
    minutes.
    """
    import torch

    def rate(x: torch.Tensor) -> float:
        start = time.perf_counter()
        for _ in range(3):
            x @ x
        return 3 * 2 * len(x) ** 3 / (time.perf_counter() - start)

    def matrix(kind: torch.dtype) -> torch.Tensor:
        small = torch.randn(256, 256, dtype=kind)
        rate(small)
        return small if rate(small) < SLOW else torch.randn(2048, 2048, dtype=kind)

    sides = {str(kind)[6:]: matrix(kind) for kind in (torch.float32, torch.bfloat16)}
    told: dict[str, Any] = {}

    def work() -> int:
        told.update({name: rate(x) for name, x in sides.items()})
        return 6

    serve(pipe, work, told)


def drivetrain(given: argparse.Namespace, pipe: TextIO) -> None:
    """The product."""
    from benchmarks.contest import ours

    if given.cached:
        serve(pipe, ours.work(given.job, given.folder), {})
    else:
        ours.steps(given.job, given.folder, lambda filling: Ordered(pipe, filling + WARM))


def sol(given: argparse.Namespace, pipe: TextIO) -> None:
    """The loop by hand; it tells which format is faster here, and the operations of a sample."""
    from benchmarks.contest import sol as by_hand
    from benchmarks.contest.task import read

    task = read(given.job)
    train = by_hand.Ready(task, task.data.train)
    task.precision = by_hand.quicker(task, train)
    told: dict[str, Any] = {"precision": task.precision}
    if given.cached:
        held = by_hand.Ready(task, task.data.validation)
        # In the rest behind a frozen prefix there may be nothing left that a short format helps.
        serve(pipe, lambda: by_hand.whole(task, train, held, True), told)
    else:
        told["operations"] = by_hand.operations(task, train)
        by_hand.steps(task, train, Ordered(pipe, WARM, lambda: told))


def peer(given: argparse.Namespace, pipe: TextIO) -> None:
    """Someone else's loop."""
    from benchmarks.contest.task import read

    train = import_module(f"benchmarks.contest.{PEERS[given.kind]}").train
    task = read(given.job, given.precision)
    pace = Pace() if given.whole else Ordered(pipe, WARM)
    accuracy = train(task, given.tuned, pace, given.folder)
    print(json.dumps({"accuracy": accuracy}), file=pipe, flush=True)


if __name__ == "__main__":
    main()
