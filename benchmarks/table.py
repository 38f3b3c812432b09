"""A million-row table: from command to first step, and samples/s against torch's DataLoader, measured alternately.

    python benchmarks/table.py [--rows 1000000] [--steps 600] [--rounds 5] [--folder DIR]

Ours is `drivetrain train` as anyone runs it, with its records and its checks. The other side is a plain loop over
torch.utils.data.DataLoader on a TensorDataset of the same prepared rows, without records or checks: same network,
optimizer, clipping, schedule, batch size and threads; with no worker and with two, of which the faster counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
JOB = """
name: million
task: tabular-classification
data:
  train: {train}
  target: fails
  ignore: [id, hours_left]
  categorical: [region]
  validation: 0.01
model: {{name: mlp, hidden: [64, 64], embedding: 4, dropout: 0.0}}
train: {{epochs: 1, steps: {steps}, batch_size: 1024, optimizer: {{name: adamw, lr: 1e-3}}}}
"""


def main() -> int:
    """Measure, print, and say whether the goals are met."""
    options = parse_arguments()
    if options.plain is not None:
        return train_plain(options.folder / "job.yaml", options.plain)
    write_job(options)
    first_seconds, ours, theirs = [], [], {0: [], 2: []}
    for number in range(options.rounds):
        seconds, rate = run_drivetrain(options.folder, number)
        first_seconds.append(seconds)
        ours.append(rate)
        for workers, rates in theirs.items():
            rates.append(run_data_loader(options.folder, workers))
        print(
            f"round {number + 1}: first step after {seconds:.1f} s; samples/s: drivetrain {rate:,.0f}, "
            + ", ".join(f"DataLoader with {w} workers {rates[-1]:,.0f}" for w, rates in theirs.items()),
            flush=True,
        )
    best = max(theirs, key=lambda workers: statistics.median(theirs[workers]))
    ratios = sorted(a / b for a, b in zip(ours, theirs[best], strict=True))
    print(
        f"command to first step: median {statistics.median(first_seconds):.1f} s, slowest {max(first_seconds):.1f} s "
        "(goal: under 10)"
    )
    print(
        f"samples/s: drivetrain {statistics.median(ours):,.0f}, DataLoader with {best} workers "
        f"{statistics.median(theirs[best]):,.0f}: {statistics.median(ratios):.2f} times, "
        f"from {ratios[0]:.2f} to {ratios[-1]:.2f} (goal: 2.3)"
    )
    return 0 if statistics.median(ratios) >= 2.3 and statistics.median(first_seconds) < 10 else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-table"))
    parser.add_argument("--plain", type=int, metavar="WORKERS", help="run the other side once, in this process")
    return parser.parse_args()


def write_job(options: argparse.Namespace) -> None:
    """The table, if it is not there, and the job."""
    from jobs.samples import table as samples

    table = options.folder / f"rows-{options.rows}"
    if not (table / "train.parquet").exists():
        samples.write(table, options.rows, seed=0)
    text = JOB.format(train=(table / "train.parquet").resolve(), steps=options.steps)
    (options.folder / "job.yaml").write_text(text, encoding="utf-8")


def run_drivetrain(folder: Path, number: int) -> tuple[float, float]:
    """Seconds from the command to the first step, and samples/s of the training, from a run of the command."""
    start, first_seconds, run = time.monotonic(), 0.0, None
    command = [
        sys.executable,
        "-m",
        "drivetrain",
        "train",
        str(folder / "job.yaml"),
        "--runs",
        str(folder / "runs"),
        "--new",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.match(r"run (\S+) starts", line):
                run = Path(match[1])
            if not first_seconds and "step 1/" in line:
                first_seconds = time.monotonic() - start
    if process.returncode or run is None:
        raise SystemExit(f"round {number + 1}: drivetrain train ended with {process.returncode}")
    return first_seconds, float(
        json.loads((ROOT / run / "result.json").read_text(encoding="utf-8"))["samples_per_second"]
    )


def run_data_loader(folder: Path, workers: int) -> float:
    """Samples/s of the other side, in a process of its own."""
    command = [sys.executable, __file__, "--folder", str(folder), "--plain", str(workers)]
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"},
    )
    return float(process.stdout)


def train_plain(job_file: Path, workers: int) -> int:
    """Train with torch's DataLoader, and print samples/s."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from drivetrain.data.load_data import load
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.models.build import build
    from drivetrain.training import optimizer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    job = job_spec.load(job_file)
    data = load(job)
    rows = torch.arange(len(data.train)).numpy()
    samples = TensorDataset(*data.train.gather(rows), data.train.targets[""])
    steps, batch_size = job.train.steps or 0, job.train.batch
    model = build(job, data).module
    adamw = optimizer.build(job.train.optimizer, model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adamw, max_lr=job.train.optimizer.lr, total_steps=steps)
    done_steps, start = 0, time.perf_counter()
    for *inputs, targets in DataLoader(samples, batch_size=batch_size, shuffle=True, num_workers=workers):
        adamw.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(*inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), job.train.clip_norm or float("inf"))
        adamw.step()
        schedule.step()
        done_steps += 1
        if done_steps == steps:
            break
    print(done_steps * batch_size / (time.perf_counter() - start))
    return 0


if __name__ == "__main__":
    sys.exit(main())
