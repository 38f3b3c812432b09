"""A frozen encoder: wall clock of the whole job against the usual recipe, and the metric of both, over seeds.

    python benchmarks/frozen.py [--seeds 3] [--texts 1000] [--epochs 5] [--folder DIR]

Twelve layers of 256, of which the embeddings and ten layers are frozen, on generated Spanish reports with three label
columns. Ours is `drivetrain train` as anyone runs it, from command to report. The other side is the usual loop over
torch's DataLoader: every text padded to 256 tokens, the frozen layers computed in every step, no records; the same
tokens, first weights, optimizer, schedule, clipping, batch size and epochs. The two take turns, seed by seed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MAX_LENGTH = 256
JOB = """
name: frozen
task: text-classification
data:
  train: reports.csv
  validation: 0.2
  text: descripcion
  labels: {{modo: 0.2, causa: 0.5, prioridad: 0.3}}
  max_length: {longest}
model: {{name: encoder, layers: 12, width: 256, heads: 4, freeze: {{layers: 10, embeddings: true}}}}
train: {{epochs: {epochs}, batch_size: 16, seed: {seed}, optimizer: {{name: adamw, lr: 1e-3}}}}
"""


def main() -> int:
    """Measure, print, and say whether the goals are met."""
    options = parse_arguments()
    if options.plain is not None:
        print(json.dumps({"metric": train_usual_loop(options.plain)}))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT))
    from jobs.samples import reports

    reports.write(options.folder, options.texts, 0)
    rows = []
    for seed in range(options.seeds):
        path = options.folder / f"seed-{seed}.yaml"
        path.write_text(JOB.format(longest=MAX_LENGTH, epochs=options.epochs, seed=seed))
        rows.append((run_drivetrain(path), run_recipe(path)))
        (our_seconds, our_score), (their_seconds, their_score) = rows[-1]
        print(
            f"seed {seed}: drivetrain {our_seconds:.1f} s, {our_score:.4f}; usual recipe {their_seconds:.1f} s, "
            f"{their_score:.4f}; {their_seconds / our_seconds:.1f}x",
            flush=True,
        )
    return print_table(rows)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-frozen"))
    parser.add_argument("--plain", type=Path, help="only the usual recipe, for this job")
    return parser.parse_args()


def print_table(rows: list[tuple[tuple[float, float], tuple[float, float]]]) -> int:
    """Print the table; 0 if it is ten times faster and the metrics are within each other's spread."""
    ours, theirs = ([row[side] for row in rows] for side in (0, 1))
    print("\n| | whole job, s (median) | validation accuracy, mean of the heads, by seed |\n| --- | --- | --- |")
    for name, side in (("drivetrain", ours), ("usual recipe", theirs)):
        scores = " ".join(f"{score:.4f}" for _, score in side)
        print(f"| {name} | {statistics.median(seconds for seconds, _ in side):.1f} | {scores} |")
    ratio = statistics.median(slow / fast for (fast, _), (slow, _) in rows)
    means = [statistics.mean(score for _, score in side) for side in (ours, theirs)]
    spread = max(max(s for _, s in side) - min(s for _, s in side) for side in (ours, theirs))
    print(
        f"\nmedian ratio {ratio:.1f}x of {len(rows)} pairs (goal 10); means {means[0]:.4f} and {means[1]:.4f}, "
        f"{abs(means[0] - means[1]):.4f} apart, spread over seeds {spread:.4f}"
    )
    return 0 if ratio >= 10 and abs(means[0] - means[1]) <= spread else 1


def run_drivetrain(path: Path) -> tuple[float, float]:
    """Seconds from command to report, and the last validation accuracy, mean of the heads."""
    runs = path.parent / "runs" / path.stem
    command = [sys.executable, "-m", "drivetrain", "train", str(path), "--runs", str(runs), "--new"]
    seconds, _ = time_command(command)
    metrics = json.loads((max(runs.glob("frozen-*")) / "result.json").read_text())["last"]
    return seconds, statistics.mean(value for name, value in metrics.items() if name.endswith("/accuracy"))


def run_recipe(path: Path) -> tuple[float, float]:
    """Seconds of the usual loop in a process of its own, and its last validation accuracy."""
    seconds, output = time_command([sys.executable, str(Path(__file__).resolve()), "--plain", str(path)])
    return seconds, float(json.loads(output.splitlines()[-1])["metric"])


def time_command(command: list[str]) -> tuple[float, str]:
    """Seconds of a command, and its output."""
    start = time.perf_counter()
    process = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{process.stdout}\n{process.stderr}")
    return time.perf_counter() - start, process.stdout


def train_usual_loop(path: Path) -> float:
    """The usual loop; the accuracy of the last epoch, mean of the heads."""
    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader

    from drivetrain.data.load_data import load
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.models.build import build
    from drivetrain.training.optimizer import build_schedule

    job = job_spec.load(path)
    data = load(job)
    model = build(job, data).module
    train, validation = pad_split(data.train), pad_split(data.validation)
    torch.manual_seed(job.train.seed)
    batches = DataLoader(train, batch_size=job.train.batch, shuffle=True)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=job.train.optimizer.lr,
        weight_decay=job.train.optimizer.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, build_schedule(job.train.schedule, len(batches) * job.train.epochs, len(batches))
    )
    accuracy = 0.0
    for _ in range(job.train.epochs):
        model.train()
        for ids, mask, *labels in batches:
            outputs = model(ids, mask)
            loss = sum(
                head.weight * functional.cross_entropy(outputs[name], labels[number])
                for number, (name, head) in enumerate(data.heads.items())
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), job.train.clip_norm)  # type: ignore[arg-type]
            optimizer.step()
            schedule.step()
        accuracy = evaluate(model, DataLoader(validation, batch_size=64), list(data.heads))
    return accuracy


def pad_split(split: Any) -> Any:
    """Texts of a split as a TensorDataset, all of them padded to MAX_LENGTH tokens."""
    import numpy as np
    import torch
    from torch.nn import functional
    from torch.utils.data import TensorDataset

    ids, mask = split.gather(np.arange(len(split)))
    padding = (0, MAX_LENGTH - ids.shape[1])
    return TensorDataset(
        functional.pad(ids, padding, value=split.pad),
        functional.pad(mask, padding),
        *(torch.as_tensor(y) for y in split.targets.values()),
    )


def evaluate(model: Any, batches: Any, names: list[str]) -> float:
    """Validation accuracy, mean of the heads."""
    import torch

    model.eval()
    right, sample_count = dict.fromkeys(names, 0), 0
    with torch.no_grad():
        for ids, mask, *labels in batches:
            outputs = model(ids, mask)
            sample_count += len(ids)
            for number, name in enumerate(names):
                right[name] += int((outputs[name].argmax(dim=1) == labels[number]).sum())
    return statistics.mean(count / sample_count for count in right.values())


if __name__ == "__main__":
    sys.exit(main())
