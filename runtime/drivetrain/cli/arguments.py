"""The command-line parser: commands and their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from drivetrain.cli.command_parser import CommandParser
from drivetrain.data.formats.csv_dialect import OPTION
from drivetrain.errors import SpecError, nearest
from drivetrain.supervisor import named_run
from drivetrain.system.version import VERSION

TRAINING = ("train", "repeat", "sweep")
"""Commands that train: their results are run folders, and they continue when nobody reads their output."""
Add = Callable[[str, str], CommandParser]
RUN = "run folder, or its name in runs/"


def make_parser() -> CommandParser:
    """Make the parser of the whole command line; `command` is the name of the command."""
    top = CommandParser(prog="drivetrain", description="Trains a PyTorch job with settings chosen for this machine.")
    top.add_argument("--version", action="version", version=f"drivetrain {VERSION}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, text: str) -> CommandParser:
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(command=name)
        return command

    groups = (_add_plan, _add_training, _add_repeat, _add_measuring, _add_look, _add_use, _add_init, _add_fetch)
    for add_group in groups:
        add_group(add)
    return top


def list_commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """List the parsers of all commands, by name: `train`, `bench speed`."""
    subparsers = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    listed: dict[str, argparse.ArgumentParser] = {}
    for name, command in (item for action in subparsers for item in action.choices.items()):
        listed |= {f"{name} {kind}": parser for kind, parser in list_commands(command).items()} or {name: command}
    return listed


def list_options(command: argparse.ArgumentParser) -> list[str]:
    """List the long options of a command."""
    return [word for action in command._actions for word in action.option_strings if word.startswith("--")]


def _add_job(command: CommandParser) -> CommandParser:
    command.add_argument("job", type=Path, help="the job file (YAML)")
    _add_set(command)
    return command


def _add_set(command: CommandParser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one value of the job, e.g. train.epochs=3; repeatable",
    )


def _add_plan(add: Add) -> None:
    """Add the commands that decide and train nothing."""
    command = add(
        "validate", "check job files and their CSV files for mistakes; needs neither torch nor internet access"
    )
    command.add_argument("jobs", type=Path, nargs="*", metavar="JOB", help="job files (YAML)")
    _add_set(command)
    command.add_switch("--schema", "print the JSON schema of job files")
    command.add_switch("--json", "print JSON: each file with its problems")
    command = add("plan", "show the settings chosen for this machine and job, with reasons; without JOB its hardware")
    command.add_argument(
        "job", type=Path, nargs="?", help="the job file (YAML); without it, show the hardware that this process may use"
    )
    _add_set(command)
    command.add_path("--hardware", "FILE", "plan for another machine: the output of `plan --json` without JOB there")
    command.add_switch("--json", "print JSON, which `train --plan` reads; without JOB, JSON for `--hardware`")


def _add_verbose(command: CommandParser) -> None:
    command.add_argument(
        "-v", "--verbose", action="store_true", help="also print every setting, and details of data and network"
    )


def _add_runs(command: CommandParser, parse: Callable[[str], Path] = named_run.parse_parent) -> CommandParser:
    _add_job(command)
    command.add_argument(
        "--runs", type=parse, default=named_run.RUNS, metavar="DIR", help="parent of the run folders (default: runs)"
    )
    return command


def _add_training(add: Add) -> None:
    """Add the commands that train."""
    command = _add_runs(add("train", "train a job, or resume its unfinished run"))
    _add_verbose(command)
    command.add_switch("--plain", "turn all optimizations off (plain PyTorch)")
    command.add_path("--plan", "FILE", "use the settings of a stored plan instead of choosing them")
    _add_start(command)
    command.add_switch("--trace", "profile a few steps: a trace of the operators for Perfetto")
    command.add_switch("--json", "print JSON at the end, and the log to stderr")
    command = _add_job(
        add(
            "launch",
            "train in a Docker container under the job's resource limits (use this on the host, not inside a container)",
        )
    )
    _add_verbose(command)
    command.add_choice("--device", ("cpu", "gpu"), "use a CPU or a GPU image")
    _add_start(command)
    command.add_switch("--trace", "profile a few steps: a trace of the operators for Perfetto")
    command.add_switch("--network", "give the container network access, for your own code")
    command.add_argument("--image", metavar="NAME", help="use this image; it is pulled if it is missing")


def _add_repeat(add: Add) -> None:
    """Add the commands that train several times."""
    command = _add_runs(
        add("repeat", "train a job with several seeds or folds: mean and standard deviation of every metric")
    )
    command.add_argument("--seeds", type=int, metavar="N", help="number of seeds, from the job's own on (default: 3)")
    command.add_argument(
        "--folds",
        type=int,
        metavar="N",
        help="cross-validation: each of N parts is validation data once; names labels that are probably wrong",
    )
    command.add_switch("--new", "start new runs in place of unfinished ones")
    command = add("sweep", "search for better values of the keys under `sweep:` in the job, with Optuna")
    _add_runs(command, lambda text: named_run.parse_parent(text, is_copied=False))
    command.add_switch("--new", "begin a new sweep, even if an earlier one is unfinished")


def _add_start(command: CommandParser) -> None:
    """Options that choose between a new run, the unfinished one, and one that continues a finished run."""
    command.add_switch("--new", "start a new run, even if an earlier one is unfinished")
    command.add_switch(
        "--if-unfinished",
        "end with 0 at once if the newest run of the same job is done, for whatever restarts the command",
    )
    command.add_argument(
        "--extend",
        type=named_run.parse,
        metavar="RUN",
        help="continue a finished run with more epochs, in a new run folder; the job's train.epochs counts from the start "
        "of that run",
    )


def _add_measuring(add: Add) -> None:
    """Add the commands that measure a job without training it."""
    top = add("bench", "measure a job: speed of each optimization, learning rate, memory, simple models")
    kinds = top.add_subparsers(required=True, metavar="KIND", dest="KIND")

    def add_kind(kind: str, text: str) -> CommandParser:
        command = kinds.add_parser(kind, help=text, description=text, allow_abbrev=False)
        command.set_defaults(command=f"bench {kind}")
        _add_job(command)
        return command

    command = add_kind("speed", "speedup of each optimization: added one by one, and removed from the full plan")
    command.add_argument("--against", action="append", default=[], metavar="KEY=VALUE", help="a variant of the job")
    add_kind("lr", "learning-rate range test: the loss at growing rates, and a suggestion")
    add_kind("memory", "peak memory of each micro-batch size")
    command = add_kind(
        "models", "simple models on a job's data, what a network has to beat; in 60 s, or with baselines=full"
    )
    command.add_switch("--json", "print JSON instead of a table")


def _add_look(add: Add) -> None:
    """Add the commands that show runs and the machine."""
    command = add("watch", "show the live progress of a run, or the last state of a finished one")
    command.add_argument(
        "run", type=named_run.parse, nargs="?", help="run folder or its name (default: the newest run)"
    )
    command = add("report", "regenerate the report of a run")
    command.add_argument("run", type=named_run.parse, help=RUN)
    command = add("compare", "compare runs side by side: job files, plans, results and curves")
    command.add_argument("runs", type=named_run.parse, nargs="+", metavar="RUN", help="two or more run folders")
    add("doctor", "check this machine for problems and show the command that fixes each")


def _add_use(add: Add) -> None:
    """Add the commands that use a trained model."""
    run = "run folder, its name in runs/, or a copied model folder"
    code = "allow a copied model folder to run the Python code inside it; read that code first"
    command = add("evaluate", "compute metrics and the confusion matrix on validation or new labeled data")
    command.add_argument("run", type=named_run.parse, help=run)
    command.add_path("--data", "PATH", "labeled data to use instead of the run's validation data")
    command.add_switch("--explain", "add to the report what the model looks at: columns of tables, places in pictures")
    command.add_path("--output", "DIR", "output folder (default: evaluation/ in the run, or evaluation-DATA/)")
    command.add_switch("--json", "print JSON instead of tables")
    _add_csv(command)
    command.add_switch("--run-code", code)
    command = add("predict", "predict new samples with a trained model")
    command.add_argument("run", type=named_run.parse, help=run)
    command.add_argument(
        "inputs",
        type=Path,
        nargs="+",
        metavar="INPUT",
        help="input files or folders, in the format of the training data",
    )
    help_text = (
        "output file (default: standard output): FILE.jsonl gets a JSON line per sample, any other file CSV, for one "
        "table with its columns and in its form"
    )
    command.add_path("--output", "FILE", help_text)
    _add_csv(command)
    command.add_switch("--probabilities", "include the probability of every class")
    command.add_switch("--run-code", code)
    command = add("export", "export a trained model to ONNX and check it against the original")
    command.add_argument("run", type=named_run.parse, help=run)
    command.add_path("--output", "FILE", "output file (default: model.onnx in the run)")
    command.add_switch("--probabilities", "the file returns the probabilities of classes in place of raw outputs")
    command.add_switch("--run-code", code)


def _add_csv(command: CommandParser) -> None:
    text = "how CSV files are written, if it is not clear: delimiter=semicolon,decimal=comma,encoding=windows-1252"
    command.add_argument(OPTION, type=parse_csv_options, default={}, metavar="KEY=VALUE,...", help=text)


def parse_csv_options(text: str) -> dict[str, str]:
    """Describe how CSV files are written by --csv, with the keys and values of `data.csv` in a job.

    Raises:
        SpecError: for an unknown key or value.
    """
    from drivetrain.job.data import CsvOptions

    # No values for `skip_rows`, which takes a number.
    allowed = {name: get_args(field.annotation) for name, field in CsvOptions.model_fields.items()}
    declared = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if key not in allowed:
            keys = ", ".join(f"{name}=..." for name in allowed)
            raise SpecError(f"{OPTION}: {pair!r} names no option", keys, nearest(key, allowed) or "use one of these")
        is_valid = value in allowed[key] if allowed[key] else value.isdecimal()
        if not is_valid:
            possible = ", ".join(allowed[key]) or "a number of lines"
            action = nearest(value, allowed[key]) or "use one of these"
            raise SpecError(f"{OPTION}: {key} is {value!r}", possible, action)
        # `auto` is as if nothing were written.
        if value != "auto":
            declared[key] = value
    return declared


def _check_task(text: str) -> str:
    """Return the name of a task whose data `init` can inspect, or refuse another one; raises SpecError."""
    from drivetrain.tasks import JOBS, modality_of, suggest_task

    tasks = [task for task in JOBS if not modality_of(JOBS[task]).is_user_code]
    if text not in tasks:
        raise SpecError(f"--task: invalid choice: {text!r}", ", ".join(tasks), suggest_task(text))
    return text


def _add_init(add: Add) -> None:
    command = add("init", "draft a job file from your data")
    command.add_argument(
        "data", type=Path, metavar="DATA", help="folder of images or sounds, table (CSV, JSONL, Parquet) or .npz"
    )
    command.add_argument("--task", type=_check_task, metavar="TASK", help="task of the job, if the guess is wrong")
    command.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column to predict; repeat it for several",
    )
    command.add_argument(
        "--text", action="append", default=[], metavar="COLUMN", help="column that holds the texts; twice for pairs"
    )
    help_text = "pretrained network to start from: a folder, a name on the hub, resnet18, or a run folder"
    command.add_argument("--pretrained", metavar="FOLDER|NAME", help=help_text)
    _add_csv(command)
    command.add_path("--output", "FILE", "job file to write (default: NAME.yaml, named after the data)")


def _add_fetch(add: Add) -> None:
    text = "download the pretrained network and the data of a job from the hub, for a machine without a network"
    command = _add_job(add("fetch", text))
    command.add_switch("--update", "ask the hub again which commit the branch or tag is; started runs keep theirs")
