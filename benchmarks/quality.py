"""How good the default is beside simple models: twelve public sets, several seeds, minutes of training on 2 CPUs.

    python benchmarks/quality.py OUT [--budgets 1m 5m 15m] [--seeds 3] [--pretrained FOLDER] [--only SET ...]

Each job is what `drivetrain init` drafts from a file of training, with `train.within` in the place of its epochs, and a file
of test that no decision uses. The contenders of a set: `default`; `linear`, with `model: linear`, for tables and texts;
`solved`, for texts if `--pretrained` names a folder: the draft that starts from it, frozen; and `simple`, the models of
`drivetrain bench models` on all samples, however long they take. A seed draws and divides the rows, and is that of the job.
With the budget `drafted` a job keeps its epochs. A run's row has its forecast, too, beside what came.

Each row is appended to OUT/rows.jsonl at once with the load of the machine before it. Those that are there for this CPU and
torch are skipped, so the same command goes on, also on another machine of this kind. OUT/page.md is written anew after each.
`--smoke` tries all of it with so few rows that the figures say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [str(ROOT / "runtime"), str(ROOT)]
sys.path[:0] = SOURCES

from benchmarks.quality_page import write_page  # noqa: E402
from benchmarks.quality_sets import MOST_ROWS, SETS, PublicSet, fetch_packages  # noqa: E402
from benchmarks.rows_file import RowsFile  # noqa: E402
from drivetrain.report.baseline_results import compare_network, from_json  # noqa: E402

DEFAULT, LINEAR, SOLVED, SIMPLE = "default", "linear", "solved", "simple"
DRAFTED = "drafted"
CPUS = 2
SMOKE_ROWS = 400


@dataclass(frozen=True)
class Trial:
    """One row: a contender on a set."""

    data: PublicSet
    contender: str
    budget: str
    """As in `train.within`, or `drafted`; empty for what has no choice of length."""
    seed: int

    @property
    def name(self) -> str:
        """Of the row."""
        return ":".join(filter(None, (self.data.name, self.contender, self.budget, str(self.seed))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows that are not measured yet; returns 1 if one failed."""
    options = parse_arguments(arguments)
    fetch_packages(options.packages)
    rows = RowsFile(options.out / "rows.jsonl", describe_machine())
    failed = False
    for trial in list_trials(options):
        if trial.name not in rows.measured:
            begin, load = time.monotonic(), os.getloadavg()[0]
            figures = measure(trial, options)
            seconds = round(time.monotonic() - begin, 1)
            about = {"set": trial.data.name, "contender": trial.contender, "budget": trial.budget, "seed": trial.seed}
            row = rows.append(
                trial.name, {**about, "date": time.strftime("%F"), "seconds": seconds, "load": load, **figures}
            )
            failed |= "failed" in row
            print(f"{trial.name:32} {seconds:6.1f} s, load {load:.1f}: {describe_figures(trial.data, row)}", flush=True)
        write_page(rows.read(), options.out / "page.md", is_trial=options.smoke)
    return int(failed)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; the folders exist afterwards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where rows.jsonl, page.md, data and runs are written")
    parser.add_argument("--packages", type=Path, help="where packages are unpacked (default: OUT/packages)")
    parser.add_argument("--pretrained", type=Path, help="folder of a text encoder as transformers saves it")
    parser.add_argument(
        "--budgets", nargs="+", default=["1m", "5m", "15m"], metavar="TIME", help="as in train.within, or drafted"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=[one.name for one in SETS], metavar="SET", help="these sets")
    parser.add_argument("--contenders", nargs="+", default=[DEFAULT, LINEAR, SOLVED, SIMPLE])
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    options.packages = options.packages or options.out / "packages"
    return options


def describe_machine() -> dict[str, Any]:
    """What must be the same for a figure to hold."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {"cpu": next(iter(names), platform.machine()), "cpus": CPUS, "torch": version("torch")}


def list_trials(options: argparse.Namespace) -> Iterator[Trial]:
    """All rows, seed by seed, the shortest budget first."""
    for seed in options.seeds:
        for budget in ("", *options.budgets):
            for data in SETS:
                contenders = [DEFAULT, LINEAR] if data.kind in ("table", "text") else [DEFAULT]
                if not budget:
                    contenders = [SOLVED, SIMPLE] if data.kind == "text" and options.pretrained else [SIMPLE]
                for contender in contenders:
                    if data.name in (options.only or [data.name]) and contender in options.contenders:
                        yield Trial(data, contender, budget, seed)


def measure(trial: Trial, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a row; `failed` says why it has none."""
    folder = options.out / "data" / f"{trial.data.name}-{trial.seed}"
    try:
        trial.data.write_files(options.packages, trial.seed, folder, SMOKE_ROWS if options.smoke else MOST_ROWS)
        job = draft_job(trial, folder, options)
        settings = ["--set", f"train.seed={trial.seed}", "--set", f"limits.cpus={CPUS}"]
        if trial.contender == SIMPLE:
            return read_simple(
                run_drivetrain("bench", "models", str(job), *settings, "--set", "baselines=full", "--json")
            )
        runs = options.out / "runs" / trial.name.replace(":", "-")
        result = run_drivetrain("train", str(job), *settings, "--runs", str(runs), "--new", "--json")
        return read_run(Path(json.loads(result)["run"]))
    except subprocess.CalledProcessError as error:
        return {"failed": " | ".join(f"{error.stdout}{error.stderr}".strip().splitlines()[-4:])[:600]}


def draft_job(trial: Trial, folder: Path, options: argparse.Namespace) -> Path:
    """Write the job as `drivetrain init` drafts it, with the file of test and the budget."""
    data, job = trial.data, folder / f"{trial.contender}{trial.budget}.yaml"
    job.unlink(missing_ok=True)
    train = folder / ("train.csv" if data.target else "train.npz")
    init_options = ["--target", data.target] if data.target else []
    init_options += ["--text", "text"] if data.kind == "text" else []
    init_options += ["--pretrained", str(options.pretrained.resolve())] if trial.contender == SOLVED else []
    run_drivetrain("init", str(train), *init_options, "--output", str(job))
    draft = job.read_text(encoding="utf-8")
    draft = re.sub(r"^data:$", f"data:\n  test: test{train.suffix}", draft, flags=re.MULTILINE)
    if trial.budget and (trial.budget != DRAFTED or options.smoke):
        length = "epochs: 1" if options.smoke else f"within: {trial.budget}"
        draft = re.sub(r"^  epochs: .*$", f"  {length}", draft, flags=re.MULTILINE)
    if trial.contender == LINEAR:
        draft = re.sub(r"^model: .*$", "model: linear", draft, flags=re.MULTILINE)
    job.write_text(draft, encoding="utf-8")
    return job


def run_drivetrain(*arguments: str) -> str:
    """What a command of this checkout prints.

    Raises:
        subprocess.CalledProcessError: if it failed.
    """
    command = [sys.executable, "-m", "drivetrain", *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(SOURCES)}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment).stdout


def read_simple(output: str) -> dict[str, Any]:
    """Metrics on the test file and seconds of each simple model."""
    rows = json.loads(output)["baselines"]
    return {"models": {row["name"]: {**_select_test(row["metrics"]), "seconds": row["seconds"]} for row in rows}}


def read_run(run: Path) -> dict[str, Any]:
    """Metrics on the test file, the length, and the run's own comparison with the simple models that it fitted.

    `better` is the simple model that it calls better, `network` if it calls the network better, `equal` if it cannot tell,
    and absent if it compared nothing but a constant answer.
    """
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    best = result["best"]
    figures = {"test": _select_test(result["test"]["metrics"]), "chosen_by": best["metric"], "steps": result["steps"]}
    figures |= {"forecast": result.get("forecast"), "train_seconds": result["seconds"]}
    simple = result.get("baselines", {})
    metrics = {best["metric"]: best["value"], **(best.get("metrics") or {}), **result["test"]["metrics"]}
    comparison = compare_network(simple, best["metric"], metrics)
    if comparison is None or not comparison.is_complete or (lead := comparison.compute_lead()) is None:
        return figures
    margin = comparison.find_margin() or 0.0
    says = "network" if lead > margin else comparison.sort_rows()[0].name if lead < -margin else "equal"
    fitted = {row.name: f"{row.rows} of {row.of}" for row in from_json(simple)[0]}
    return {**figures, "better": says, "judged_by": comparison.metric, "lead": lead, "fitted": fitted}


def _select_test(metrics: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix("test/"): value for name, value in metrics.items() if name.startswith("test/")}


def describe_figures(data: PublicSet, row: dict[str, Any]) -> str:
    """A row's figures on a line."""
    if "failed" in row:
        return f"failed: {row['failed']}"
    models = row.get("models") or {row["contender"]: row["test"]}
    figures = ", ".join(f"{name} {metrics[data.metric]:.4f}" for name, metrics in models.items())
    return f"{figures}; says {row.get('better', 'nothing')}" if "test" in row else figures


if __name__ == "__main__":
    sys.exit(main())
