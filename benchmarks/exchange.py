"""Three ways to sum gradients over a slow network, in turn: after the backward pass, during it, and in bf16.

    sudo python -m benchmarks.exchange [--rate 500mbit] [--layers 6] [--batch 384] [--rounds 8] [--machines 2]

Network namespaces stand for machines; each sends at most at the given rate. Needs root and iproute2. A network of fully
connected layers trains in one process on each, with one thread. The ways take turns, step by step, so that whatever else the
machine does falls on all of them alike. The table has the medians of all rounds, and the least and the largest ratio to the
first way with an exchange.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Batch
from drivetrain.distributed import gradient_exchange
from drivetrain.distributed.gradient_exchange import GradientExchange
from drivetrain.distributed.ranks import ALONE, Ranks
from drivetrain.training.peers import Peers
from drivetrain.training.step import Step
from drivetrain.training.step_options import StepOptions
from tests import nodes

WIDTH = 1024
PORT = 29600
ONE_BUCKET = 2**40
"""Bytes of a bucket that holds everything."""
WAYS = {
    "no exchange": (4 * 2**20, False, None),
    "in one piece, after the backward pass": (ONE_BUCKET, False, None),
    "in buckets, during it": (4 * 2**20, True, None),
    "in buckets of 1 MB": (2**20, True, None),
    "in buckets of 8 MB": (8 * 2**20, True, None),
    "in buckets, during it, bf16": (4 * 2**20, True, torch.bfloat16),
}
"""Size of a bucket, whether they are sent early, and the format."""
COLLECTIVE = "a collective of one number"
COLLECTIVE_COUNT = 200


class MeanSquare:
    """The mean square of all outputs."""

    def denominators(self, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The number of samples."""
        return {"": torch.tensor(float(WIDTH), dtype=torch.float64)}

    def __call__(self, outputs: Tensor, targets: Mapping[str, Tensor], over: Mapping[str, Tensor]) -> Tensor:
        """A scalar."""
        return outputs.square().mean()


def build_step(way: str, ranks: Ranks, layers: int, batch: Batch) -> Step:
    """A step whose buckets are laid out that way."""
    size, overlaps, dtype = WAYS[way]
    torch.manual_seed(0)
    network = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    step_ranks = ALONE if way == "no exchange" else ranks
    exchange = GradientExchange(step_ranks)
    exchange.overlaps, exchange.dtype = overlaps, dtype
    options = StepOptions(forward=network, peers=Peers(step_ranks), exchange=exchange)
    step = Step(network, torch.optim.SGD(network.parameters(), 1e-3), MeanSquare(), None, torch.device("cpu"), options)  # type: ignore[arg-type]
    vars(gradient_exchange)["BUCKET_BYTES"] = size  # read when the first step lays them out
    step(batch, 0)
    return step


def measure_ways(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each step, by way, in this process."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=options.meet, rank=options.rank, world_size=options.machines, timeout=timedelta(minutes=5)
    )
    ranks = Ranks(options.rank, options.machines)
    inputs = torch.randn(options.batch, WIDTH, generator=torch.Generator().manual_seed(options.rank))
    batch = Batch(np.arange(options.batch), (inputs,), {})
    steps = {way: build_step(way, ranks, options.layers, batch) for way in WAYS}
    seconds_by_way: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way, step in steps.items():
            ranks.barrier()
            begin = time.perf_counter()
            step(batch, 0)
            seconds_by_way[way].append(time.perf_counter() - begin)
    seconds_by_way[COLLECTIVE] = []
    for _ in range(COLLECTIVE_COUNT):
        begin = time.perf_counter()
        ranks.barrier()
        seconds_by_way[COLLECTIVE].append(time.perf_counter() - begin)
    torch.distributed.destroy_process_group()
    return seconds_by_way


def run_machines(options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    """Run a process on each of several machines with slow links; returns the times that rank 0 measured."""
    with nodes.network(options.machines) as machines, tempfile.TemporaryDirectory() as folder:
        for number, machine in enumerate(machines):
            limit = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", options.rate]
            subprocess.run(
                ["ip", "netns", "exec", machine.space, *limit, "burst", "256kb", "latency", "100ms"], check=True
            )
            rank_arguments = ["--rank", str(number), "--meet", f"tcp://{machines[0].address}:{PORT}"]
            file = ["--file", f"{folder}/{number}"]
            command = [sys.executable, "-m", "benchmarks.exchange", *arguments, *rank_arguments, *file]
            machine.start(command, Path(folder) / f"{number}.log", {"GLOO_SOCKET_IFNAME": "eth0"})
        for number, machine in enumerate(machines):
            if machine.started[0].wait(1800):
                raise SystemExit((Path(folder) / f"{number}.log").read_text())
        return dict(json.loads((Path(folder) / "0").read_text()))


def parse_arguments() -> argparse.Namespace:
    """The arguments of the command, and of the processes that it starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="500mbit", help="of each machine's link, as tc writes it")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=384, help="samples of each process")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--machines", type=int, default=2)
    for name in ("--rank", "--meet", "--file"):
        parser.add_argument(name, type=int if name == "--rank" else str, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    options = parse_arguments()
    if options.file:
        Path(options.file).write_text(json.dumps(measure_ways(options)))
        return
    if nodes.MISSING:
        raise SystemExit(f"benchmarks.exchange {nodes.MISSING}")
    rounds = run_machines(options, sys.argv[1:])
    collective_seconds = sorted(rounds.pop(COLLECTIVE))
    medians = {way: statistics.median(seconds) for way, seconds in rounds.items()}
    alone_seconds, flat_seconds = (medians[way] for way in list(WAYS)[:2])
    size = options.layers * WIDTH * (WIDTH + 1) * 4
    setup = f"{options.machines} machines, {options.batch} samples of each, {options.rate}, {options.rounds} rounds"
    print(f"{size / 1e6:.0f} MB of gradients, {setup}, load {os.getloadavg()[0]:.1f}")
    print("| way | step | ratio | of single rounds | exchange |\n" + "|---" * 5 + "|")
    for way, seconds in medians.items():
        ratios = sorted(a / b for a, b in zip(rounds[way], rounds[list(WAYS)[1]], strict=True))
        spread = f"{ratios[0]:.2f}-{ratios[-1]:.2f}"
        exchange = f"{(seconds - alone_seconds) * 1e3:.0f} ms"
        print(f"| {way} | {seconds * 1e3:.0f} ms | {seconds / flat_seconds:.2f} | {spread} | {exchange} |")
    median = statistics.median(collective_seconds)
    print(f"{COLLECTIVE}: {collective_seconds[0] * 1e6:.0f} us at least, median {median * 1e6:.0f} us")


if __name__ == "__main__":
    main()
