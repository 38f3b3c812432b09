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
LONGEST = 256
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
    given = arguments()
    if given.plain is not None:
        print(json.dumps({"metric": usual(given.plain)}))
        return 0
    given.folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT))
    from drivetrain.data.sample_data import text

    text.write(given.folder, given.texts, 0)
    rows = []
    for seed in range(given.seeds):
        path = given.folder / f"seed-{seed}.yaml"
        path.write_text(JOB.format(longest=LONGEST, epochs=given.epochs, seed=seed))
        rows.append((drivetrain(path), recipe(path)))
        (ours, score), (theirs, other) = rows[-1]
        print(
            f"seed {seed}: drivetrain {ours:.1f} s, {score:.4f}; usual recipe {theirs:.1f} s, {other:.4f}; "
            f"{theirs / ours:.1f}x",
            flush=True,
        )
    return told(rows)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-frozen"))
    parser.add_argument("--plain", type=Path, help="only the usual recipe, for this job")
    return parser.parse_args()


def told(rows: list[tuple[tuple[float, float], tuple[float, float]]]) -> int:
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


def drivetrain(path: Path) -> tuple[float, float]:
    """Seconds from command to report, and the last validation accuracy, mean of the heads."""
    runs = path.parent / "runs" / path.stem
    line = [sys.executable, "-m", "drivetrain", "train", str(path), "--runs", str(runs), "--new"]
    seconds, _ = timed(line)
    last = json.loads((max(runs.glob("frozen-*")) / "result.json").read_text())["last"]
    return seconds, statistics.mean(value for name, value in last.items() if name.endswith("/accuracy"))


def recipe(path: Path) -> tuple[float, float]:
    """Seconds of the usual loop in a process of its own, and its last validation accuracy."""
    seconds, out = timed([sys.executable, str(Path(__file__).resolve()), "--plain", str(path)])
    return seconds, float(json.loads(out.splitlines()[-1])["metric"])


def timed(line: list[str]) -> tuple[float, str]:
    """Seconds of a command, and what it printed."""
    start = time.perf_counter()
    done = subprocess.run(
        line,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(line)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - start, done.stdout


def usual(path: Path) -> float:
    """The usual loop; the accuracy of the last epoch, mean of the heads."""
    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader

    from drivetrain.data.load_data import load
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.models.build import build
    from drivetrain.training.learning_rates import build_schedule

    job = job_spec.load(path)
    data = load(job)
    model = build(job, data).module
    train, held = padded(data.train), padded(data.validation)
    torch.manual_seed(job.train.seed)
    batches = DataLoader(train, batch_size=job.train.batch, shuffle=True)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=job.train.optimizer.lr,
        weight_decay=job.train.optimizer.weight_decay,
    )
    rate = torch.optim.lr_scheduler.LambdaLR(
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
            torch.nn.utils.clip_grad_norm_(model.parameters(), job.train.clip_norm)
            optimizer.step()
            rate.step()
        accuracy = evaluated(model, DataLoader(held, batch_size=64), list(data.heads))
    return accuracy


def padded(split: Any) -> Any:
    """Texts of a split as a TensorDataset, all of them filled up."""
    import numpy as np
    import torch
    from torch.nn import functional
    from torch.utils.data import TensorDataset

    ids, mask = split.gather(np.arange(len(split)))
    more = (0, LONGEST - ids.shape[1])
    return TensorDataset(
        functional.pad(ids, more, value=split.pad),
        functional.pad(mask, more),
        *(torch.as_tensor(y) for y in split.targets.values()),
    )


def evaluated(model: Any, batches: Any, names: list[str]) -> float:
    """Validation accuracy, mean of the heads."""
    import torch

    model.eval()
    right, seen = dict.fromkeys(names, 0), 0
    with torch.no_grad():
        for ids, mask, *labels in batches:
            outputs = model(ids, mask)
            seen += len(ids)
            for number, name in enumerate(names):
                right[name] += int((outputs[name].argmax(dim=1) == labels[number]).sum())
    return statistics.mean(count / seen for count in right.values())


if __name__ == "__main__":
    sys.exit(main())
