"""Each advice of the run doctor on a job that was built to need it: the gain that it promises, and the gain measured.

    python benchmarks/advice.py [CASE ...] [--pairs 2] [--folder DIR]

A case is trained, its report read, the advised line put into the spec as it stands, and trained again; before and after
take turns. Cases that need a limit run in a container under it (`drivetrain launch`), the others natively with one thread.
The last column is the time of the whole run, or the memory in use and its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SLOW_DATA = '''
"""Items that take their time: a spectrum of each, drawn anew."""
import numpy as np
import torch
from torch.utils.data import Dataset


class Slow(Dataset):
    def __init__(self, samples):
        self.targets = np.arange(samples) % 3

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        wave = np.sin(np.linspace(0, 40 * (self.targets[index] + 1), 1 << 16)) + draw.normal(0, 1, 1 << 16)
        return torch.from_numpy(np.abs(np.fft.rfft(wave))[:256].astype(np.float32)), int(self.targets[index])


def load():
    return Slow(1600), Slow(200)
'''
NETWORK = '''
"""A plain network; `threads` does what must not be done, in every pass."""
import torch
from torch import nn


class Threads(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x):
        torch.set_num_threads(self.count)
        return x


def build(inputs, outputs, width=256, threads=0):
    first = [Threads(threads)] if threads else []
    return nn.Sequential(*first, nn.Linear(inputs[0][0], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, outputs))
'''
ARRAYS = '''
"""Points in memory."""
import numpy as np


def load(samples, features=256):
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(samples, features)).astype(np.float32)
    targets = (inputs[:, 0] > 0).astype(np.int64) + (inputs[:, 1] > 0)
    cut = samples * 9 // 10
    return (inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:])
'''


@dataclass(frozen=True)
class Case:
    """A job that should get an advice."""

    line_start: str
    """What the advised line begins with."""
    spec: Mapping[str, Any]
    write_data: Callable[[Path], None] | None = None
    in_container: bool = False
    quantity: str = "time"


def write_photos(folder: Path) -> None:
    """Write large pictures, of which the network sees little."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(240):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(draw.integers(0, 120, (24, 32, 3), dtype=np.uint8) + np.uint8(120 * (number % 2)))
        small.resize((1280, 960)).save(path, quality=90)


def write_reports(folder: Path) -> None:
    """Write texts of very different lengths."""
    from jobs.samples import reports

    reports.write(folder, 2000, 0)


def make_custom_spec(
    name: str, factory_arguments: Mapping[str, Any], width: int = 256, threads: int = 0
) -> dict[str, Any]:
    """A custom job over one of the files above."""
    return {
        "task": "custom",
        "data": {"file": f"{name}.py", "factory": "load", "arguments": dict(factory_arguments)},
        "model": {"file": "network.py", "factory": "build", "arguments": {"width": width, "threads": threads}},
    }


CASES = {
    "images decoded again and again": Case(
        "optimize: {decode_cache",
        write_data=write_photos,
        spec={
            "task": "image-classification",
            "data": {"train": "photos", "validation": 0.2, "image_size": 64},
            "train": {"epochs": 10, "batch_size": 16},
            "optimize": {"decode_cache": False, "cpu_threads": 1},
        },
    ),
    "items that take their time": Case(
        "optimize: {loader_workers",
        spec=make_custom_spec("slow", {}, 1024)
        | {"train": {"epochs": 5, "batch_size": 32}, "optimize": {"cpu_threads": 1}},
    ),
    "padding": Case(
        "optimize: {unpadding",
        write_data=write_reports,
        spec={
            "task": "text-classification",
            "data": {"train": "reports.csv", "validation": 0.1, "text": "descripcion", "labels": "causa"},
            "model": {"name": "encoder", "layers": 1, "width": 64, "dropout": 0.0},
            "train": {"epochs": 6, "batch_size": 32},
            "optimize": {"unpadding": "off", "cpu_threads": 1},
        },
    ),
    "saving too often": Case(
        "checkpoint: {every",
        spec=make_custom_spec("arrays", {"samples": 8000}, 1400)
        | {
            "train": {"epochs": 14, "batch_size": 64},
            "checkpoint": {"every": "20 steps"},
            "optimize": {"cpu_threads": 1},
        },
    ),
    "a setting that does nothing": Case(
        "optimize: {cpu_threads: auto",
        spec=make_custom_spec("arrays", {"samples": 20000}, 1024, threads=1)
        | {"train": {"epochs": 16, "batch_size": 64}, "optimize": {"cpu_threads": 2}},
    ),
    "more threads than the quota": Case(
        "optimize: {cpu_threads: 1",
        in_container=True,
        spec=make_custom_spec("arrays", {"samples": 20000}, 1024)
        | {"train": {"epochs": 8, "batch_size": 64}, "optimize": {"cpu_threads": 2}, "limits": {"cpus": 1}},
    ),
    "a quota that is too small": Case(
        "limits: {cpus",
        in_container=True,
        spec=make_custom_spec("slow", {}, 1024)
        | {
            "train": {"epochs": 5, "batch_size": 32},
            "optimize": {"cpu_threads": 1, "loader_workers": 1},
            "limits": {"cpus": 1},
        },
    ),
    "a limit that is too high": Case(
        "limits: {memory",
        in_container=True,
        quantity="memory",
        spec=make_custom_spec("arrays", {"samples": 20000}, 1024)
        | {"train": {"epochs": 8, "batch_size": 64}, "limits": {"cpus": 1, "memory": "4g"}},
    ),
    "memory near the limit": Case(
        "optimize: {micro_batch",
        in_container=True,
        quantity="memory",
        spec=make_custom_spec("arrays", {"samples": 40000, "features": 1024}, 1024)
        | {"train": {"epochs": 8, "batch_size": 16384}, "limits": {"cpus": 1, "memory": "896m"}},
    ),
}


def main() -> int:
    """Run the cases and print a row for each; 1 if an advice did not come."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-advice"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("slow", SLOW_DATA), ("arrays", ARRAYS), ("network", NETWORK)):
        (options.folder / f"{name}.py").write_text(text)
    print("| job | advice | promised | measured |\n| --- | --- | --- | --- |", flush=True)
    return max([run_case(name, options.folder, options.pairs) for name in options.cases or CASES])


def run_case(name: str, folder: Path, pairs: int) -> int:
    """Run a case and print its row of the table; returns 1 if the expected advice did not come."""
    case = CASES[name]
    if case.write_data:
        case.write_data(folder)
    stem = re.sub(r"\W+", "-", name)
    figures, advice_list = train_job(folder, case, stem, case.spec)
    expected = next((advice for advice in advice_list if advice.line.startswith(case.line_start)), None)
    if expected is None:
        print(f"| {name} | none: {[advice.line for advice in advice_list]} | | {figures} |", flush=True)
        return 1
    mended_spec = merge_line(case.spec, yaml.safe_load(expected.line))
    rows = [figures], [train_job(folder, case, f"{stem}-mended", mended_spec)[0]]
    for _ in range(pairs - 1):
        rows[0].append(train_job(folder, case, stem, case.spec)[0])
        rows[1].append(train_job(folder, case, f"{stem}-mended", mended_spec)[0])
    print(f"| {name} | `{expected.line}` | {expected.gain} | {format_comparison(*rows, case.quantity)} |", flush=True)
    return 0


def format_comparison(before: list[dict[str, float]], after: list[dict[str, float]], quantity: str) -> str:
    """Medians of both sides."""

    def compute_median(rows: list[dict[str, float]], key: str) -> float:
        return statistics.median(row[key] for row in rows)

    seconds = [compute_median(rows, "seconds") for rows in (before, after)]
    text = f"{seconds[0]:.1f} s, then {seconds[1]:.1f} s: {1 - seconds[1] / seconds[0]:+.0%} less time"
    if quantity == "memory":
        memory = [
            f"{compute_median(rows, 'peak') / 2**20:.0f} of {compute_median(rows, 'limit') / 2**20:.0f} MiB"
            for rows in (before, after)
        ]
        text = f"{memory[0]}, then {memory[1]}; {text}"
    return f"{text} ({len(after)} pairs)"


def train_job(folder: Path, case: Case, name: str, spec: Mapping[str, Any]) -> tuple[dict[str, float], list[Any]]:
    """Train once; returns the figures and the advice of the run."""
    from drivetrain.report.record import read, summarize
    from drivetrain.report.sections.advice import list_advice

    name = f"advice-{name}"
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"name": name, **spec}, sort_keys=False))
    runs = ROOT / "runs" if case.in_container else folder / "runs"
    options = [] if case.in_container else ["--runs", str(runs)]
    process = subprocess.run(
        [sys.executable, "-m", "drivetrain", "launch" if case.in_container else "train", str(path), *options, "--new"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(f"{name} ended with {process.returncode}:\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}")
    run = max(runs.glob(f"{name}-[0-9]*"), key=lambda run_folder: run_folder.stat().st_mtime)
    record = read(run)
    summary, memory_used = summarize(record), record.telemetry.get("memory_used")
    result = json.loads((run / "result.json").read_text())
    peak = max([result["peak_memory"], *(memory_used.ys if memory_used and case.in_container else ())])
    figures = {"seconds": result["seconds"], "peak": peak, "limit": result["memory_limit"] or 0.0}
    return figures, list_advice(record, summary)


def merge_line(spec: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with the advised line in it."""
    merged = dict(spec)
    for key, value in line.items():
        merged[key] = merge_line(merged.get(key) or {}, value) if isinstance(value, Mapping) else value
    return merged


if __name__ == "__main__":
    sys.exit(main())
