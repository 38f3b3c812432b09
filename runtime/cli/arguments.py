"""The command-line parser: commands and their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from runtime.cli import cluster_options, csv_option, plan_options, runs_option
from runtime.cli.command_parser import CommandParser
from runtime.job import JOBS
from runtime.supervisor import named_run
from runtime.system.version import VERSION

TASKS = tuple(task for task in JOBS if task != "custom")
"""Tasks whose data `init` can inspect; data of the remaining one comes from user code."""
Add = Callable[[str, str], argparse.ArgumentParser]
RUN = "run folder, its name in runs/, or its address in an object store"


def parser() -> CommandParser:
    """The parser of the whole command line; `command` is the name of the command."""
    whole = CommandParser(prog="drivetrain", description="Trains a PyTorch job with settings chosen for this machine.")
    whole.add_argument("--version", action="version", version=f"drivetrain {VERSION}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        made.set_defaults(command=name)
        return made

    _add_plan(add)
    _add_training(add)
    _add_repeat(add)
    _add_measuring(add)
    _add_look(add)
    _add_use(add)
    _add_data(add)
    add("schema", "print the JSON schema of the job file")
    made = add("completion", "print a script that completes commands, options and runs in a shell")
    made.add_argument("shell", choices=("bash", "zsh"), help="the shell")
    return whole


def commands_of(whole: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of all commands, by name."""
    found = (action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    return {name: made for action in found for name, made in action.choices.items()}


def options_of(made: argparse.ArgumentParser) -> list[str]:
    """The long options of a command."""
    return [word for action in made._actions for word in action.option_strings if word.startswith("--")]


def _with_job(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument("job", type=Path, help="the job file (YAML)")
    _add_set(made)
    return made


def _add_set(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one value of the job, e.g. train.epochs=3; repeatable",
    )


def _add_plan(add: Add) -> None:
    """Commands that decide and train nothing."""
    made = add("validate", "check job files and their CSV files for mistakes; needs neither torch nor internet access")
    made.add_argument("jobs", type=Path, nargs="+", metavar="JOB", help="job files (YAML)")
    _add_set(made)
    made.add_argument(
        "--remote",
        action="store_true",
        help="also use every object store that the jobs name: list, read, write a probe",
    )
    made.add_argument(
        "--runs", type=runs_option.parse, default=runs_option.LOCAL, metavar="ADDRESS", help="as for `train`"
    )
    made = add("facts", "show this machine's hardware and how much of it this process may use")
    made.add_argument("--json", action="store_true", help="print JSON, which `plan --hardware` reads")
    made = _with_job(add("plan", "show the settings chosen for this machine and job, with reasons"))
    made.add_argument(
        "--hardware", type=Path, metavar="FILE", help="plan for another machine: the output of `facts --json` there"
    )
    made.add_argument("--plain", action="store_true", help="turn all optimizations off")
    made.add_argument("--all", action="store_true", help="include settings that do not apply to this machine and job")
    made.add_argument("--json", action="store_true", help="print JSON, which `train --plan` reads")
    plan_options.add(made)


def _with_runs(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    _with_job(made)
    made.add_argument(
        "--runs",
        type=runs_option.parse,
        default=runs_option.LOCAL,
        metavar="DIR",
        help="parent of the run folders (default: runs); s3://BUCKET/PATH, gs:// or az:// copies runs/ there",
    )
    made.add_argument("--plain", action="store_true", help="turn all optimizations off (plain PyTorch)")
    return made


def _add_training(add: Add) -> None:
    """Commands that train."""
    made = _with_runs(add("train", "train a job, or resume its unfinished run"))
    made.add_argument(
        "--plan", type=Path, metavar="FILE", help="use the settings of a stored plan instead of choosing them"
    )
    _add_start(made)
    made.add_argument(
        "--trace", action="store_true", help="profile a few steps: slowest operators, and a trace for Perfetto"
    )
    _add_nodes(made)
    made = _with_job(
        add(
            "launch",
            "train in a Docker container under the job's resource limits, or on a cluster (use this on the host, not "
            "inside a container)",
        )
    )
    made.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="use a CPU or a GPU image (default: cpu)")
    made.add_argument("--plain", action="store_true", help="turn all optimizations off (plain PyTorch)")
    _add_start(made)
    made.add_argument(
        "--trace", action="store_true", help="profile a few steps: slowest operators, and a trace for Perfetto"
    )
    made.add_argument("--network", action="store_true", help="give the container network access, for your own code")
    made.add_argument("--image", metavar="NAME", help="use this image; it is pulled if it is missing")
    cluster_options.add(made)


def _add_nodes(made: argparse.ArgumentParser) -> None:
    """The place of this machine among several, where no scheduler sets it."""
    made.add_argument("--nodes", type=int, metavar="N", help="number of machines that train together")
    made.add_argument("--node", type=int, metavar="I", help="with --nodes: number of this machine, from 0 on")
    made.add_argument(
        "--meet", metavar="HOST:PORT", help="with --nodes: where machine 0 listens, an address that all can reach"
    )


def _add_repeat(add: Add) -> None:
    """The commands that train several times."""
    made = _with_runs(
        add("repeat", "train a job with several seeds or folds: mean and standard deviation of every metric")
    )
    made.add_argument("--seeds", type=int, metavar="N", help="number of seeds, from the job's own on (default: 3)")
    made.add_argument(
        "--folds", type=int, metavar="N", help="cross-validation: each of N parts is validation data once"
    )
    made.add_argument("--new", action="store_true", help="start new runs in place of unfinished ones")
    made = _with_runs(add("sweep", "search for better values of the keys under `sweep:` in the job, with Optuna"))
    made.add_argument("--trials", type=int, metavar="N", help="number of trials, those that are done included")
    made.add_argument("--new", action="store_true", help="begin a new sweep, even if an earlier one is unfinished")


def _add_start(made: argparse.ArgumentParser) -> None:
    """Options that choose between a new run, the unfinished one, and one that continues a finished run."""
    made.add_argument("--new", action="store_true", help="start a new run, even if an earlier one is unfinished")
    made.add_argument(
        "--extend",
        type=named_run.parse,
        metavar="RUN",
        help="continue a finished run with more epochs, in a new run folder; the job's train.epochs counts from the start "
        "of that run",
    )
    made.add_argument(
        "--restart-schedule",
        action="store_true",
        help="with --extend: start the learning-rate schedule again over the added epochs",
    )


def _add_measuring(add: Add) -> None:
    """Commands that measure a job without training it."""
    made = _with_job(add("find-lr", "run a learning-rate range test: plot the loss and suggest a rate"))
    made.add_argument("--output", type=Path, metavar="DIR", help="output folder (default: runs/find-lr-<name>)")
    made.add_argument("--lowest", type=float, default=1e-6, help="first learning rate (default: 1e-6)")
    made.add_argument("--highest", type=float, default=10.0, help="last learning rate (default: 10)")
    made.add_argument("--steps", type=int, default=100, help="number of mini-batches (default: 100)")
    made = _with_job(add("memory", "predict and measure peak memory for each micro-batch size"))
    made.add_argument("--output", type=Path, metavar="DIR", help="output folder (default: runs/memory-<name>)")
    made = _with_job(
        add("bench", "measure the speedup of each optimization: added one by one, and removed from the full plan")
    )
    made.add_argument(
        "--against", action="append", default=[], metavar="KEY=VALUE", help="also compare with a variant of the job"
    )
    made.add_argument("--output", type=Path, metavar="DIR", help="output folder (default: runs/bench-<name>)")
    made.add_argument("--rounds", type=int, default=8, help="number of paired measurements per comparison (default: 8)")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made = add(
        "calibrate",
        "measure once what settings depend on here: number formats, layouts, threads, libraries (some seconds; by itself "
        "before the first training)",
    )
    made.add_argument("--again", action="store_true", help="measure again, even if a calibration is kept")
    made.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _add_look(add: Add) -> None:
    """Commands that show runs and the machine."""
    made = add("watch", "show the live progress of a run, or the last state of a finished one")
    made.add_argument("run", type=named_run.parse, nargs="?", help="run folder or its name (default: the newest run)")
    made = add("report", "regenerate the report of a run")
    made.add_argument("run", type=named_run.parse, help=RUN)
    made = add("reproduce", "train a finished run again from its own records, and compare the result bit by bit")
    made.add_argument("run", type=named_run.parse, help=RUN)
    made.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="parent of the new run folder (default: runs)"
    )
    code = "allow a run that was not trained here to run the Python code inside it; read that code first"
    made.add_argument("--run-code", action="store_true", help=code)
    made = add("track", "send to a tracking server what it does not have of a run yet")
    made.add_argument("run", type=named_run.parse, help=RUN)
    made.add_argument("--mlflow", metavar="ADDRESS", help="MLflow server (default: that of the run's job file)")
    made.add_argument("--experiment", metavar="NAME", help="experiment there (default: the job's name)")
    made = add("compare", "compare runs side by side: job files, plans, results and curves")
    made.add_argument(
        "runs", type=named_run.parse, nargs="+", metavar="RUN", help="two or more run folders, or their addresses"
    )
    made.add_argument(
        "--output", type=Path, metavar="DIR", help="output folder (default: compare-... next to the first run)"
    )
    made.add_argument("--json", action="store_true", help="print JSON instead of tables")
    made = add("doctor", "check this machine for problems and show the command that fixes each")
    made.add_argument("--json", action="store_true", help="print JSON")


def _add_use(add: Add) -> None:
    """Commands that use a trained model."""
    run = "run folder, its name in runs/, its address in an object store, or a copied model folder"
    code = "allow a copied model folder to run the Python code inside it; read that code first"
    made = add("evaluate", "compute metrics and the confusion matrix on validation or new labeled data")
    made.add_argument("run", type=named_run.parse, help=run)
    made.add_argument(
        "--data", type=Path, metavar="PATH", help="labeled data to use instead of the run's validation data"
    )
    made.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="output folder (default: evaluation/ in the run, or evaluation-DATA/)",
    )
    _add_csv(made)
    made.add_argument("--run-code", action="store_true", help=code)
    made = add("predict", "predict new samples with a trained model")
    made.add_argument("run", type=named_run.parse, help=run)
    made.add_argument(
        "inputs",
        type=Path,
        nargs="+",
        metavar="INPUT",
        help="input files or folders, in the format of the training data; - reads standard input: CSV, JSON lines, or a "
        "path of an image in each line",
    )
    made.add_argument(
        "--format",
        choices=("csv", "jsonl"),
        default="csv",
        help="output format: one CSV row or JSON line per sample (default: csv)",
    )
    made.add_argument("--output", type=Path, metavar="FILE", help="output file (default: standard output)")
    _add_csv(made)
    made.add_argument("--probabilities", action="store_true", help="include the probability of every class")
    made.add_argument("--run-code", action="store_true", help=code)
    made = add("export", "export a trained model to ONNX and check it against the original")
    made.add_argument("run", type=named_run.parse, help=run)
    made.add_argument("--output", type=Path, metavar="FILE", help="output file (default: model.onnx in the run)")
    made.add_argument(
        "--data", type=Path, metavar="PATH", help="samples for the check (default: the run's validation data)"
    )
    _add_csv(made)
    made.add_argument("--run-code", action="store_true", help=code)


def _add_csv(made: argparse.ArgumentParser) -> None:
    made.add_argument("--csv", default="", metavar="KEY=VALUE,...", help=csv_option.HELP)


def _add_data(add: Add) -> None:
    """Commands that prepare data and weights."""
    made = add("sample", "write the generated data that the example jobs train on")
    made.add_argument("kind", choices=("images", "texts", "series", "table"), help="kind of data")
    made.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    made.add_argument("--size", type=int, default=1200, help="number of images, texts or rows (default: 1200)")
    made.add_argument("--seed", type=int, default=0, help="random seed; the same seed gives the same data (default: 0)")
    made = add("shard", "write a folder of images as shards, which data.stream reads while a run trains on them")
    made.add_argument("source", type=Path, metavar="DIR", help="a folder with one folder of images for each class")
    made.add_argument("--to", required=True, metavar="PLACE", help="a folder, or s3://BUCKET/PATH, gs://..., az://...")
    made.add_argument(
        "--format",
        choices=("tar", "parquet"),
        default="tar",
        help="tar as WebDataset has it, or Parquet with the columns image and label (default: tar)",
    )
    made.add_argument("--size", default="64m", metavar="SIZE", help="size of a shard (default: 64m)")
    made.add_argument("--seed", type=int, default=0, help="of the random order of the images (default: 0)")
    made = add("init", "draft a job file from your data")
    made.add_argument("data", type=Path, metavar="DATA", help="folder of images, table (CSV, JSONL, Parquet) or .npz")
    made.add_argument("--task", choices=TASKS, help="task of the job, if the guess is wrong")
    made.add_argument(
        *("--target", "--label"),
        action="append",
        default=[],
        metavar="COLUMN",
        help="column to predict; repeat it for several",
    )
    made.add_argument(
        "--text", action="append", default=[], metavar="COLUMN", help="column that holds the texts; twice for pairs"
    )
    _add_csv(made)
    made.add_argument(
        "--output", type=Path, metavar="FILE", help="job file to write (default: NAME.yaml, named after the data)"
    )
    made = _with_job(
        add(
            "fetch",
            "download the pretrained network and the data of a job from the hub, for a machine without a network",
        )
    )
    made.add_argument(
        "--update",
        action="store_true",
        help="ask the hub again which commit the branch or tag is; started runs keep theirs",
    )
    made.add_argument("--container", action="store_true", help="into the volume of the containers that `launch` starts")
    made = add("convert", "convert a pickle checkpoint to safetensors, in an isolated process")
    made.add_argument(
        "file", type=Path, metavar="FILE", help="checkpoint file: pytorch_model.bin, best_model.bin, *.pt"
    )
