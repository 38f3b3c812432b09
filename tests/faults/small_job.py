"""The small job of the fault tests, its processes, and whether two runs ended with the same bits.

BatchNorm, dropout, augmentation, mixup, an average of the weights, a plateau and early stopping: 200 steps.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.paths import ROOT

TEXT = """
name: small
task: image-classification
data: {train: images.npz, validation: 0.25, augment: {flip: true, mixup: {alpha: 0.2}}}
model: {name: small-cnn, width: 4, dropout: 0.1}
train:
  epochs: 25
  batch_size: 16
  ema: 0.9
  optimizer: {name: adamw, lr: 0.01}
  schedule: {name: plateau, patience: 1, factor: 0.5}
  early_stopping: {metric: validation/accuracy, patience: 30}
checkpoint: {every: 7 steps}
optimize: {cpu_threads: 1}
"""
SAMPLES, BATCH = 120, 16
"""Training samples, and how many of them make a batch."""


def write_job(folder: Path, **changes: str) -> Path:
    """The job in a folder of its own, with its data; `changes` replaces words of the spec."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.arange(160) % 3
    images = (np.random.default_rng(0).random((160, 8, 8)) * 200).astype(np.uint8)
    images[np.arange(160), labels * 2] += 40
    np.savez(folder / "images.npz", images=images, labels=labels)
    text = TEXT
    for key, value in changes.items():
        text, count = re.subn(rf"\b{key}: [^,}}\n]+", f"{key}: {value}", text)
        assert count == 1, key
    path = folder / "small.yaml"
    path.write_text(text)
    return path


def command(job: Path, *options: str) -> list[str]:
    """`drivetrain train` with the driver's witness and fault."""
    return [
        sys.executable,
        "-m",
        "tests.faults.driver",
        "train",
        str(job),
        "--runs",
        str(job.parent / "runs"),
        *options,
    ]


def make_environment(job: Path) -> dict[str, str]:
    """Our variables, and where the witness writes."""
    return {**os.environ, "LEDGER": str(job.parent / "ledger.jsonl")}


def start(job: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """Start a training in a session of its own; its output goes to job.log."""
    variables = {**make_environment(job), **environment}
    with (job.parent / "job.log").open("a") as log:
        return subprocess.Popen(
            command(job, *options),
            cwd=ROOT,
            env=variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def finish(job: Path, *options: str, expected: int = 0, **environment: str) -> str:
    """Train until the process ends by itself; its output."""
    path = job.parent / "job.log"
    before = path.stat().st_size if path.exists() else 0
    code = start(job, *options, **environment).wait(timeout=300)
    text = path.read_text()[before:]
    assert code == expected, f"exit {code}\n{text}"
    assert "Traceback" not in text, text
    return text


def make_default(run: Path, key: str) -> None:
    """Change the record of a run to that of a version whose default is what the user wrote."""
    path = run / "job" / "written.json"
    places = json.loads(path.read_text())
    del places[key]
    path.write_text(json.dumps(places))


def newest_run(job: Path) -> Path:
    """The newest run folder of the job."""
    return sorted((job.parent / "runs").iterdir())[-1]


def read_status(job: Path) -> str:
    """What the supervisor says about the newest run."""
    path = (
        newest_run(job) / "state.json"
        if (job.parent / "runs").exists() and any((job.parent / "runs").iterdir())
        else None
    )
    return str(json.loads(path.read_text())["status"]) if path and path.exists() else "none"


def read_rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The rows of a JSON-lines file."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def read_json(folder: Path, name: str) -> Any:
    """The data of a JSON file of a run folder."""
    return json.loads((folder / name).read_text())


def last_checkpoint(folder: Path) -> Path:
    """The last checkpoint of a run folder."""
    return max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The state of a checkpoint, without the one thing that is a time."""
    content: dict[str, Any] = json.loads((checkpoint / "state.json").read_text())
    del content["counters"]["seconds"]
    return content


def differences(one: Path, two: Path) -> list[str]:
    """What is not the same at the end of two runs: weights, optimizer, average, state, model, metrics by step."""
    first, second = last_checkpoint(one), last_checkpoint(two)
    unequal = [f"{first.name} and {second.name}"] if first.name != second.name else []
    pairs = [(first, second), (one / "model", two / "model")]
    for one_folder, two_folder in pairs:
        names = {path.name for folder in (one_folder, two_folder) for path in folder.glob("*.safetensors")}
        assert names
        unequal += [
            f"{one_folder.name}/{name}" for name in sorted(names) if not _same(one_folder / name, two_folder / name)
        ]
    if read_state(first) != read_state(second):
        unequal.append("state.json")
    if (one / "metrics.jsonl").read_bytes() != (two / "metrics.jsonl").read_bytes():
        unequal.append("metrics.jsonl")
    return unequal


def _same(one: Path, two: Path) -> bool:
    return one.exists() and two.exists() and one.read_bytes() == two.read_bytes()


def ledger_faults(job: Path) -> list[str]:
    """What is wrong with the samples that the run was made of: later attempts replace the steps they did again."""
    ids_by_batch: dict[tuple[int, int], list[int]] = {}
    for row in read_rows(job.parent, "ledger.jsonl"):
        ids_by_batch[row["epoch"], row["batch"]] = row["ids"]
    problems = []
    for epoch in range(1 + max(epoch for epoch, _ in ids_by_batch)):
        ids = sorted(i for (e, _), group in ids_by_batch.items() if e == epoch for i in group)
        if ids != list(range(SAMPLES)):
            problems.append(f"epoch {epoch + 1}: {len(ids)} samples, {len(set(ids))} different")
    return problems


def leftovers(folder: Path) -> list[str]:
    """Temporary files in a run folder."""
    return [str(p) for p in folder.rglob("*") if re.fullmatch(r"\.(tmp|old)-.+|\..+\.\d+", p.name)]


def processes(folder: Path) -> list[int]:
    """Processes that name the folder in their command line."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_line = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command_line and int(path.parent.name) != os.getpid():
            pids.append(int(path.parent.name))
    return pids
