"""Stand: a contender's process.

python -m benchmarks.contest.stand KIND JOB FOLDER [--tuned] [--precision bf16] [--cached] [--whole]

It answers in lines of JSON: one when it is ready, then one for each order. With --whole it trains from the job's start
to its end, and answers with the accuracy.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from benchmarks.contest.pace import ESTIMATE_STEPS, OrderedPace, Pace, open_answer_pipe, serve

PEERS = {"tutorial": "tutorial", "lightning": "lightning_trainer", "huggingface": "huggingface"}
WARM_UP_STEPS = 2 + ESTIMATE_STEPS
EMULATED_RATE = 5e9
"""Operations per second of a format that is emulated; a chip that has it computes ten times as many at least."""


def main() -> None:
    """Run the contender until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("job", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--cached", action="store_true")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    pipe = open_answer_pipe()
    if options.kind == "gemm":
        run_gemm(pipe)
    elif options.kind == "drivetrain":
        run_drivetrain(options, pipe)
    elif options.kind == "sol":
        run_sol(options, pipe)
    else:
        run_peer(options, pipe)


def run_gemm(pipe: TextIO) -> None:
    """Matrix products of 2048, in fp32 and bf16: the denominator; of 256 where the chip lacks the format and torch needs
    minutes.
    """
    import torch

    def measure_rate(matrix: torch.Tensor) -> float:
        start = time.perf_counter()
        for _ in range(3):
            matrix @ matrix
        return 3 * 2 * len(matrix) ** 3 / (time.perf_counter() - start)

    def make_matrix(dtype: torch.dtype) -> torch.Tensor:
        small = torch.randn(256, 256, dtype=dtype)
        measure_rate(small)
        return small if measure_rate(small) < EMULATED_RATE else torch.randn(2048, 2048, dtype=dtype)

    matrices = {str(dtype)[6:]: make_matrix(dtype) for dtype in (torch.float32, torch.bfloat16)}
    rates: dict[str, Any] = {}

    def work() -> int:
        rates.update({name: measure_rate(matrix) for name, matrix in matrices.items()})
        return 6

    serve(pipe, work, rates)


def run_drivetrain(options: argparse.Namespace, pipe: TextIO) -> None:
    """Drivetrain itself."""
    from benchmarks.contest import ours

    if options.cached:
        serve(pipe, ours.prepare_whole_run(options.job, options.folder), {})
    else:
        ours.train_by_order(options.job, options.folder, lambda steps: OrderedPace(pipe, steps + WARM_UP_STEPS))


def run_sol(options: argparse.Namespace, pipe: TextIO) -> None:
    """The loop by hand; its first answer names the format that is faster here, and the operations of a sample."""
    from benchmarks.contest import sol as by_hand
    from benchmarks.contest.task import read_task

    task = read_task(options.job)
    train = by_hand.SplitTensors(task, task.data.train)
    task.precision = by_hand.choose_precision(task, train)
    facts: dict[str, Any] = {"precision": task.precision}
    if options.cached:
        validation = by_hand.SplitTensors(task, task.data.validation)
        # A short format may not help the layers behind a frozen prefix.
        serve(pipe, lambda: by_hand.train_whole(task, train, validation, True), facts)
    else:
        facts["operations"] = by_hand.count_operations(task, train)
        by_hand.train_by_order(task, train, OrderedPace(pipe, WARM_UP_STEPS, lambda: facts))


def run_peer(options: argparse.Namespace, pipe: TextIO) -> None:
    """The loop of another trainer."""
    from benchmarks.contest.task import read_task

    train = import_module(f"benchmarks.contest.{PEERS[options.kind]}").train
    task = read_task(options.job, options.precision)
    pace = Pace() if options.whole else OrderedPace(pipe, WARM_UP_STEPS)
    accuracy = train(task, options.tuned, pace, options.folder)
    print(json.dumps({"accuracy": accuracy}), file=pipe, flush=True)


if __name__ == "__main__":
    main()
