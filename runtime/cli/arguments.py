"""Arguments: the commands and the words that each takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from runtime.supervisor import named_run
from runtime.system.version import VERSION

Add = Callable[[str, str], argparse.ArgumentParser]


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `command` is the name of what was asked for."""
    whole = argparse.ArgumentParser(prog="drivetrain", description="Fits a training job to the machine it lands on.")
    whole.add_argument("--version", action="version", version=f"drivetrain {VERSION}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(command=name)
        return made

    def with_job(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
        made.add_argument("job", type=Path, help="job spec in YAML")
        made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a value")
        return made

    with_job(add("validate", "check a job spec; no torch, no network"))
    made = add("facts", "what this container may use, host beside allowed")
    made.add_argument("--json", action="store_true", help="as JSON, the input of plan --hardware")
    made = with_job(add("plan", "every decision with its reason"))
    made.add_argument("--hardware", type=Path, metavar="FILE", help="decide for a recorded machine")
    made.add_argument("--plain", action="store_true", help="everything off")
    made.add_argument("--all", action="store_true", help="also the decisions that do not apply to this machine and job")
    made.add_argument("--json", action="store_true", help="as JSON, the input of train --plan")
    made = with_job(add("train", "train, or resume an unfinished run"))
    made.add_argument("--plain", action="store_true", help="everything off: the honest baseline")
    made.add_argument("--plan", type=Path, metavar="FILE", help="replay a stored plan")
    made.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go")
    made.add_argument("--new", action="store_true", help="start a new run, whatever is unfinished")
    made.add_argument("--trace", action="store_true", help="profile a few steps: operators and a trace for Perfetto")
    made = with_job(add("launch", "host side: train in a container under the job's limits"))
    made.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="which kind of image")
    made.add_argument("--plain", action="store_true", help="everything off: the honest baseline")
    made.add_argument("--new", action="store_true", help="start a new run, whatever is unfinished")
    made.add_argument("--trace", action="store_true", help="profile a few steps: operators and a trace for Perfetto")
    made.add_argument("--network", action="store_true", help="a network for own code that needs one")
    made = with_job(add("find-lr", "learning-rate range test: a picture and a suggested rate"))
    made.add_argument("--output", type=Path, metavar="DIR", help="where they go; runs/find-lr-<name> if absent")
    made.add_argument("--lowest", type=float, default=1e-6, help="first learning rate (1e-6)")
    made.add_argument("--highest", type=float, default=10.0, help="last learning rate (10)")
    made.add_argument("--steps", type=int, default=100, help="mini-batches (100)")
    made = with_job(add("memory", "memory at the peak by micro-batch, predicted and measured: a table and a picture"))
    made.add_argument("--output", type=Path, metavar="DIR", help="where they go; runs/memory-<name> if absent")
    made = with_job(add("bench", "the ladder: plain, then each optimization in turn, all, all without each"))
    made.add_argument("--against", action="append", default=[], metavar="KEY=VALUE", help="a variant of the job, last")
    made.add_argument("--output", type=Path, metavar="DIR", help="where the files go; runs/bench-<name> if absent")
    made.add_argument("--rounds", type=int, default=8, help="pairs of blocks of each comparison (8)")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    _add_look(add)
    _add_use(add)
    _add_data(add)
    add("schema", "JSON schema of the job spec")
    return whole


def _add_look(add: Add) -> None:
    """The commands that show runs and the machine."""
    made = add("watch", "follow a run, or look at one that has ended, from its folder alone")
    made.add_argument("run", type=named_run.parse, nargs="?", help="run folder, or its name; the newest if absent")
    made = add("report", "write the report of a run anew")
    made.add_argument("run", type=named_run.parse, help="run folder, or its name below runs/")
    made = add("compare", "specs, plans and results of runs side by side, with their curves")
    made.add_argument("runs", type=named_run.parse, nargs="+", metavar="RUN", help="two run folders or more")
    made.add_argument("--output", type=Path, metavar="DIR", help="where the files go; compare-... beside the first run")
    made.add_argument("--json", action="store_true", help="print JSON instead of tables")
    made = add("doctor", "what is wrong on this machine, with the command that mends it")
    made.add_argument("--json", action="store_true", help="as JSON")


def _add_use(add: Add) -> None:
    """The commands that use a trained model."""
    run = "run folder, its name below runs/, or a model folder copied elsewhere"
    code = "run the Python code that lies in a model folder outside of its run; read it first"
    made = add("evaluate", "metrics and confusion matrix on validation data or on new labelled data")
    made.add_argument("run", type=named_run.parse, help=run)
    made.add_argument(
        "--data", type=Path, metavar="PATH", help="new labelled data instead of the run's validation data"
    )
    made.add_argument("--output", type=Path, metavar="DIR", help="where the files go; evaluation/ in the run if absent")
    made.add_argument("--run-code", action="store_true", help=code)
    made = add("predict", "a trained model's answers for new samples")
    made.add_argument("run", type=named_run.parse, help=run)
    made.add_argument("inputs", type=Path, nargs="+", metavar="INPUT", help="files or folders, as the task reads them")
    made.add_argument("--format", choices=("csv", "jsonl"), default="csv", help="one row or one line for each sample")
    made.add_argument("--output", type=Path, metavar="FILE", help="stdout if absent")
    made.add_argument("--probabilities", action="store_true", help="the probability of every class")
    made.add_argument("--run-code", action="store_true", help=code)
    made = add("export", "a trained model as ONNX, checked against the original")
    made.add_argument("run", type=named_run.parse, help=run)
    made.add_argument("--output", type=Path, metavar="FILE", help="model.onnx in the run if absent")
    made.add_argument("--data", type=Path, metavar="PATH", help="samples for the check instead of made-up ones")
    made.add_argument("--run-code", action="store_true", help=code)


def _add_data(add: Add) -> None:
    """The commands that make data and weights ready."""
    made = add("sample", "write learnable sample data, the input of the example jobs")
    made.add_argument("kind", choices=("images", "texts", "series", "table"), help="what to make")
    made.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    made.add_argument("--size", type=int, default=1200, help="images, texts, or rows (1200)")
    made.add_argument("--seed", type=int, default=0, help="the same seed gives the same data (0)")
    made = add("convert", "a pickle checkpoint to safetensors, read apart without network")
    made.add_argument("file", type=Path, metavar="FILE", help="pytorch_model.bin, best_model.bin, *.pt")
