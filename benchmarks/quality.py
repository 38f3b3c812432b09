"""How good a trained model is beside what others train from the same rows: accuracy on a test file, over several seeds.

    python benchmarks/quality.py ROW ... [--seeds 5] [--only CONTENDER ...] [--set K=V ...] [--peers PYTHON] [--folder DIR]

Rows: texts (short descriptions of Debian packages, two label columns), and the tables of scikit-learn: cancer, wine,
digits, diabetes; the digits again as pictures and as series. `ours` is `drivetrain train` with nothing but the data, the size of the network, the epochs and the
batch; each further contender `ours: KEY=VALUE` has one setting changed. The peers need `make peers`. A seed divides the
rows anew and is the seed of every contender, so differences are taken seed by seed. Results collect in ROW.json: another
call adds seeds and contenders, and `--table` prints what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers" / "bin" / "python"
OURS = "ours"
TEXTS = """
name: quality
task: text-classification
data: {{train: train.csv, validation: validation.csv, test: test.csv, text: text, labels: [section, role]}}
model: {{name: encoder, layers: {layers}, width: {width}}}
train: {{epochs: {epochs}, batch_size: {batch}, seed: {seed}, optimizer: {{name: adamw, lr: {rate}}}}}
"""
TABLE = """
name: quality
task: tabular-{task}
data: {{train: train.csv, validation: validation.csv, test: test.csv, target: target}}
train: {{seed: {seed}}}
"""
PICTURES = """
name: quality
task: image-classification
data: {{train: train.npz, validation: validation.npz, test: test.npz}}
model: resnet18
train: {{epochs: {epochs}, batch_size: {batch}, seed: {seed}, optimizer: {{name: adamw, lr: {rate}}}}}
"""
SERIES = """
name: quality
task: series-classification
data: {{train: train.npz, validation: validation.npz, test: test.npz}}
model: {{name: cnn-lstm, cnn_channels: [{width}], kernel: 5, lstm_hidden: {width}}}
train: {{epochs: {epochs}, batch_size: {batch}, seed: {seed}, optimizer: {{name: adamw, lr: {rate}}}}}
"""
SPECS = {"texts": TEXTS, "pictures": PICTURES, "series": SERIES}
"""The job of a row; that of a table if absent."""
SETTINGS = {
    "texts": ("layers", "width", "epochs", "batch", "rate"),
    "pictures": ("epochs", "batch", "rate"),
    "series": ("width", "epochs", "batch", "rate"),
}
"""What the neural networks of a row share; nothing if absent."""
PARTNERS = {
    "texts": ("hugging-face", "tf-idf"),
    "pictures": ("resnet18 by the Trainer", "array trees"),
    "series": ("cnn-lstm by the Trainer", "array trees"),
}
"""The peers of a row; those of a table if absent."""
CHANGES = {
    "texts": (
        "train.schedule={name: cosine, warmup: 0.1}",
        "model.pooling=cls",
        "model.dropout=0.0",
        "train.optimizer.weight_decay=0.01",
        "optimize.unpadding=off",
    )
}
"""What one contender each changes."""

EVERY = ("texts", "pictures", "series", "cancer", "wine", "digits", "diabetes")
Scores = dict[str, float]


def main() -> int:
    """Train what is missing, and print the tables."""
    given = arguments()
    for row in given.rows:
        place = given.folder / f"{row}.json"
        found = json.loads(place.read_text()) if place.exists() else {}
        found = {"scores": {}, **found, **machine(), "settings": settings(given, row)}
        for seed in range(given.seeds):
            for contender in contenders(given, row):
                known = found["scores"].setdefault(contender, {})
                if not given.table and str(seed) not in known:
                    known[str(seed)] = scored(given, row, contender, seed)
                    write(place, found)
                    print(f"{row}, seed {seed}, {contender}: {told(known[str(seed)])}", file=sys.stderr, flush=True)
        print(f"## {row}\n\n{table(found['scores'])}\n")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=EVERY, metavar="ROW")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="these contenders, as the table calls them")
    parser.add_argument("--set", action="append", default=[], help="one more contender that changes this key of ours")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3, help="of texts, pictures and series")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate, of Hugging Face's Trainer too")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--peers", type=Path, default=PEERS, help="Python of the other trainers' environment")
    parser.add_argument("--table", action="store_true", help="train nothing, only print what is there")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "quality")
    return parser.parse_args()


def settings(given: argparse.Namespace, row: str) -> dict[str, Any]:
    """What all neural networks of a row share."""
    return {name: getattr(given, name) for name in SETTINGS.get(row, ())}


def contenders(given: argparse.Namespace, row: str) -> list[str]:
    """The names of the contenders."""
    changes = (*CHANGES.get(row, ()), *given.set)
    every = [OURS, *PARTNERS.get(row, ("trees", "linear")), *(f"{OURS}: {change}" for change in changes)]
    return given.only or every


def scored(given: argparse.Namespace, row: str, contender: str, seed: int) -> Scores:
    """Train one contender; its scores on the test file."""
    folder = given.folder.resolve() / f"{row}-{seed}"
    if not any((folder / f"test.{kind}").exists() for kind in ("csv", "npz")):
        peer(given, "data", row, str(seed), str(folder))
    if not contender.startswith(OURS):
        return dict(json.loads(peer(given, contender, str(seed), str(folder), json.dumps(settings(given, row)))))
    spec = SPECS.get(row, TABLE)
    task = "regression" if row == "diabetes" else "classification"
    (folder / "job.yaml").write_text(spec.format(seed=seed, task=task, **settings(given, row)), encoding="utf-8")
    runs = folder / "runs"
    changes = [contender.removeprefix(f"{OURS}: ")] if contender != OURS else []
    changes += ["optimize.measure=off", f"limits.cpus={given.cpus}"]
    options = [word for change in changes for word in ("--set", change)]
    command = [
        sys.executable,
        "-m",
        "drivetrain",
        "train",
        str(folder / "job.yaml"),
        "--runs",
        str(runs),
        "--new",
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{contender} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    result = json.loads((max(runs.glob("quality-*")) / "result.json").read_text(encoding="utf-8"))
    wanted = ("test/accuracy", "test/r2") if row != "texts" else ("test/section/accuracy", "test/role/accuracy")
    found: Mapping[str, float] = result["test"]["metrics"]
    return {name.split("/")[-2 if row == "texts" else -1]: found[name] for name in wanted if name in found}


def peer(given: argparse.Namespace, *words: str) -> str:
    """Run the other side; what it prints last."""
    if not given.peers.exists():
        raise SystemExit(f"{given.peers} is not there; `make peers` installs the other trainers")
    command = [str(given.peers), "-m", "benchmarks.contest.quality_peers", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": str(given.cpus)}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words[:2])} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout.strip().rpartition("\n")[2]


def machine() -> dict[str, Any]:
    """Where and with what it was measured."""
    cpu = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    names = ("torch", "tokenizers", "transformers")
    versions = {name: version(name) for name in names} | {"python": platform.python_version()}
    return {"date": time.strftime("%Y-%m-%d"), "cpu": cpu[0] if cpu else platform.machine(), "versions": versions}


def table(scores: Mapping[str, Mapping[str, Scores]]) -> str:
    """Means with standard deviations, and the mean difference to `ours` over the seeds that both have."""
    heads = list(next((each for found in scores.values() for each in found.values()), {}))
    lines = ["| contender | seeds | " + " | ".join(f"{head} | less ours" for head in heads) + " |"]
    lines.append("| --- |" + " ---: |" * (1 + 2 * len(heads)))
    for contender, found in scores.items():
        if found:
            cells = [
                cell
                for head in heads
                for cell in (spread([s[head] for s in found.values()], ""), beside(scores, contender, head))
            ]
            lines.append(f"| {contender} | {len(found)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def beside(scores: Mapping[str, Mapping[str, Scores]], contender: str, head: str) -> str:
    """A contender's score less ours, seed by seed."""
    ours = scores.get(OURS, {})
    less = [score[head] - ours[seed][head] for seed, score in scores[contender].items() if seed in ours]
    return spread(less, "+") if less and contender != OURS else ""


def spread(values: list[float], sign: str) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(values):{sign}.3f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.3f}"


def told(scores: Scores) -> str:
    """Scores on a line."""
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


def write(place: Path, found: Mapping[str, Any]) -> None:
    """Keep what is known so far."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
