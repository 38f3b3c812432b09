"""One row of `gpu.py`, in a process of its own; the last line of its output is JSON.

python benchmarks/gpu_arm.py ROW FOLDER OUT [--smoke]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT), str(ROOT / "benchmarks")]

from gpu_rows import SETTINGS, make_job  # noqa: E402

from drivetrain.system.files import write_json  # noqa: E402

Figures = dict[str, Any]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"}
TIMED_SECONDS, TRIAL_SECONDS = 6.0, 0.3
"""Seconds that a loop is timed: on a GPU, and in a trial."""
START_SECONDS = 12
"""Seconds of a run, beside the timed ones, in which it starts and its telemetry settles."""
TRIAL_COMMAND_RUN = ("mlp", "default")
"""The run that a trial starts as a user does; the others it trains in its own process."""
MAX_TIME_EXIT_CODE = 75
"""Exit code of a run that `train.max_time` has ended, as all runs here are."""


def main() -> int:
    """Measure one row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("row")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    print(json.dumps(measure_row(options.row, options)), flush=True)
    return 0


def measure_row(name: str, options: argparse.Namespace) -> Figures:
    """The figures of a row. Each kind imports torch and what it compares with only when it runs."""
    kind, *parts = name.split(":")
    return KINDS[kind](options, *parts)


def measure_ours(options: argparse.Namespace, network: str, setting: str) -> Figures:
    """`drivetrain train`, as a user types it: its records, clipping, dropout and texts of different lengths are real.

    The figures are medians of the second half of its own telemetry.
    """
    job, runs = make_job(network, options.folder, trial=options.smoke), options.folder / f"runs-{network}-{setting}"
    shutil.rmtree(runs, ignore_errors=True)
    end_setting = "train.steps=3" if options.smoke else f"train.max_time={TIMED_SECONDS + START_SECONDS:.0f}s"
    assignments = [*SETTINGS[setting], end_setting, "monitor.every=0.5s"]
    if options.smoke and (network, setting) != TRIAL_COMMAND_RUN:
        return _train_in_process(job, runs, assignments)
    set_options = [word for value in assignments for word in ("--set", value)]
    process = _run_drivetrain("train", str(job), "--runs", str(runs), *set_options)
    if process.returncode not in (0, MAX_TIME_EXIT_CODE):
        return {"missing": _format_failure(process)}
    (run,) = runs.glob("*-001")
    return read_figures_of_run(run)


def _train_in_process(job: Path, folder: Path, assignments: Sequence[str]) -> Figures:
    """Train in this process, which saves a trial the start of two more."""
    import gpu_reference

    from drivetrain.errors import SpecError
    from drivetrain.training.train import train

    folder.mkdir(parents=True)
    try:
        run = gpu_reference.assemble_run(job, folder, assignments)
    except SpecError as error:
        return {"missing": f"{error.problems[0].key} {error.problems[0].given}: {error.problems[0].possible}"[:300]}
    if run.plan.value("compile"):
        return {"missing": "a trial compiles nothing"}
    write_json(folder / "plan.json", run.plan.to_json())
    train(run)
    return read_figures_of_run(folder)


def read_figures_of_run(run: Path) -> Figures:
    telemetry, metrics = (_read_rows(run / name) for name in ("telemetry.jsonl", "metrics.jsonl"))
    # Only rows with steps count: a short run may end in rows of its evaluation alone.
    busy = [row for row in telemetry if row.get("samples_per_second")]
    warm = busy[len(busy) // 2 :]
    plan = {row["name"]: row["value"] for row in json.loads((run / "plan.json").read_text())["decisions"]}
    losses = [row["train/loss"] for row in metrics if "train/loss" in row]
    figures: Figures = {
        key: statistics.median(values)
        for key in ("samples_per_second", "gpu_percent", "input_wait")
        if (values := [row[key] for row in warm if row.get(key)])
    }
    for key in ("gpu_allocated", "gpu_reserved"):
        figures[key] = max((row.get(key) or 0 for row in telemetry), default=0)
    # A step that could not be captured, or a compiler that failed, would look like a slow one.
    if lines := [row["text"] for row in _read_rows(run / "events.jsonl") if row["kind"] in ("step_graph", "compile")]:
        figures["events"] = lines
    figures["steps"] = max((row["step"] for row in metrics), default=0)
    figures["losses"] = losses[:: max(1, len(losses) // 8)]
    return figures | {"plan": {name: value for name, value in plan.items() if value not in (False, "off", None)}}


def measure_start(options: argparse.Namespace, cache_state: str) -> Figures:
    """Seconds from the command to step 100 with compile: with an empty cache, then with the one that is left."""
    if options.smoke:
        return {"missing": "a trial compiles nothing"}
    job, cache = make_job("resnet18", options.folder, trial=False), options.folder / "compile-cache"
    runs = options.folder / f"runs-start-{cache_state}"
    for path in (runs, *([cache] if cache_state == "cold" else [])):
        shutil.rmtree(path, ignore_errors=True)
    begin = time.perf_counter()
    set_options = ["--set", "optimize.compile=true", "--set", "train.steps=100"]
    process = _run_drivetrain("train", str(job), "--runs", str(runs), *set_options, TORCHINDUCTOR_CACHE_DIR=str(cache))
    return (
        {"missing": _format_failure(process)}
        if process.returncode
        else {"seconds_to_step_100": time.perf_counter() - begin}
    )


def run_tests(options: argparse.Namespace) -> Figures:
    """tests/gpu, several at a time; the name of each is in tests.log as soon as it is over."""
    log = options.out / "tests.log"
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-v", "-rA", "--tb=short", "-p", "no:cacheprovider"]
    with log.open("w") as file:
        workers = "0" if options.smoke else "8"
        process = subprocess.run(
            [*command, "-n", workers], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=ENVIRONMENT, check=False
        )
    return {"exit_code": process.returncode, "last_line": (log.read_text().splitlines() or [""])[-1]}


def measure_ceilings(options: argparse.Namespace) -> Figures:
    """What all else is measured against: the cost of a launch, matrix products, memory, copies."""
    import gpu_reference

    return gpu_reference.measure_ceilings(trial=options.smoke)


def measure_steps(options: argparse.Namespace, network: str) -> Figures:
    """Kernels, their time and the host's waits in a step of ours."""
    import gpu_reference

    return gpu_reference.count_kernels_of_ours(make_job(network, options.folder, trial=options.smoke), options.folder)


def measure_reference(options: argparse.Namespace, network: str, loop: str) -> Figures:
    """A loop by hand on samples on the device: eager, compiled, or the whole step as one CUDA graph."""
    import gpu_reference

    if loop == "compiled" and options.smoke:
        return {"missing": "a trial compiles nothing"}
    job = make_job(network, options.folder, trial=options.smoke)
    return gpu_reference.measure_loop(job, loop, TRIAL_SECONDS if options.smoke else TIMED_SECONDS)


def compare_bits(options: argparse.Namespace, network: str) -> Figures:
    """Whether a step that is replayed as a graph gives the bits of the eager one."""
    import gpu_reference

    return gpu_reference.compare_bits(make_job(network, options.folder, trial=options.smoke))


def measure_peer(name: str) -> Callable[..., Figures]:
    """A row of another trainer, on the same data and network."""

    def measure(options: argparse.Namespace, network: str, level: str) -> Figures:
        import gpu_peers

        job = make_job(network, options.folder, trial=options.smoke)
        try:
            return gpu_peers.PEERS[name](job, level, TRIAL_SECONDS if options.smoke else TIMED_SECONDS)
        except ImportError as error:
            return {"missing": f"{error}".splitlines()[0][:200]}

    return measure


KINDS: dict[str, Callable[..., Figures]] = {
    "ours": measure_ours,
    "start": measure_start,
    "tests": run_tests,
    "ceilings": measure_ceilings,
    "steps": measure_steps,
    "reference": measure_reference,
    "bits": compare_bits,
    "lightning": measure_peer("lightning"),
    "huggingface": measure_peer("huggingface"),
}


def _run_drivetrain(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drivetrain", *arguments]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT | variables, capture_output=True, text=True, check=False)


def _format_failure(process: subprocess.CompletedProcess[str]) -> str:
    lines = (process.stderr.strip() or process.stdout.strip()).splitlines()
    return f"exit {process.returncode}: {' | '.join(line.strip() for line in lines[-3:])[:300]}"


def _read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
