"""The command line: `python -m runtime COMMAND`, installed as `drivetrain`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from runtime.errors import DrivetrainError, SpecError

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = _parser().parse_args(arguments)
    command: Command = given.command
    try:
        return command(given)
    except DrivetrainError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="drivetrain", description="Fits a training job to the machine it lands on.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(command=command)
        return made

    def with_job(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
        made.add_argument("job", type=Path, help="job spec in YAML")
        made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a value")
        return made

    with_job(add("validate", validate, "check a job spec; no torch, no network"))
    made = add("facts", facts, "what this container may use, host beside allowed")
    made.add_argument("--json", action="store_true", help="as JSON, the input of plan --hardware")
    made = with_job(add("plan", plan, "every decision with its reason"))
    made.add_argument("--hardware", type=Path, metavar="FILE", help="decide for a recorded machine")
    made.add_argument("--plain", action="store_true", help="everything off")
    made.add_argument("--json", action="store_true", help="as JSON, the input of train --plan")
    made = with_job(add("train", train, "train, or resume an unfinished run"))
    made.add_argument("--plain", action="store_true", help="everything off: the honest baseline")
    made.add_argument("--plan", type=Path, metavar="FILE", help="replay a stored plan")
    made.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go")
    made.add_argument("--new", action="store_true", help="start a new run, whatever is unfinished")
    made.add_argument("--trace", action="store_true", help="profile a few steps: operators and a trace for Perfetto")
    made = with_job(add("launch", launch, "host side: train in a container under the job's limits"))
    made.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="which kind of image")
    made.add_argument("--new", action="store_true", help="start a new run, whatever is unfinished")
    made = with_job(add("find-lr", find_lr, "learning-rate range test: a picture and a suggested rate"))
    made.add_argument("--output", type=Path, metavar="DIR", help="where they go; runs/find-lr-<name> if absent")
    made.add_argument("--lowest", type=float, default=1e-6, help="first learning rate (1e-6)")
    made.add_argument("--highest", type=float, default=10.0, help="last learning rate (10)")
    made.add_argument("--steps", type=int, default=100, help="mini-batches (100)")
    made = with_job(
        add("memory", memory, "memory at the peak by micro-batch, predicted and measured: a table and a picture")
    )
    made.add_argument("--output", type=Path, metavar="DIR", help="where they go; runs/memory-<name> if absent")
    made = with_job(add("bench", bench, "the ladder: plain, then each optimization in turn, all, all without each"))
    made.add_argument("--against", action="append", default=[], metavar="KEY=VALUE", help="a variant of the job, last")
    made.add_argument("--output", type=Path, metavar="DIR", help="where the files go; runs/bench-<name> if absent")
    made.add_argument("--rounds", type=int, default=8, help="pairs of blocks of each comparison (8)")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    _add_look(add)
    _add_use(add)
    _add_data(add)
    add("schema", schema, "JSON schema of the job spec")
    return parser


def _add_look(add: Callable[[str, Command, str], argparse.ArgumentParser]) -> None:
    """The commands that show runs and the machine."""
    made = add("watch", watch, "follow a run, or look at one that has ended, from its folder alone")
    made.add_argument("run", type=Path, help="run folder")
    made = add("report", report, "write the report of a run anew")
    made.add_argument("run", type=Path, help="run folder")
    made = add("compare", compare, "specs, plans and results of runs side by side, with their curves")
    made.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="two run folders or more")
    made.add_argument("--output", type=Path, metavar="DIR", help="where the files go; compare-... beside the first run")
    made.add_argument("--json", action="store_true", help="print JSON instead of tables")
    made = add("doctor", doctor, "what is wrong on this machine, with the command that mends it")
    made.add_argument("--json", action="store_true", help="as JSON")


def _add_use(add: Callable[[str, Command, str], argparse.ArgumentParser]) -> None:
    """The commands that use a trained model."""
    run = "run folder, or a model folder copied elsewhere"
    code = "run the Python code that lies in a model folder outside of its run; read it first"
    made = add("evaluate", evaluate, "metrics and confusion matrix on validation data or on new labelled data")
    made.add_argument("run", type=Path, help=run)
    made.add_argument(
        "--data", type=Path, metavar="PATH", help="new labelled data instead of the run's validation data"
    )
    made.add_argument("--output", type=Path, metavar="DIR", help="where the files go; evaluation/ in the run if absent")
    made.add_argument("--run-code", action="store_true", help=code)
    made = add("predict", predict, "a trained model's answers for new samples")
    made.add_argument("run", type=Path, help=run)
    made.add_argument("inputs", type=Path, nargs="+", metavar="INPUT", help="files or folders, as the task reads them")
    made.add_argument("--format", choices=("csv", "jsonl"), default="csv", help="one row or one line for each sample")
    made.add_argument("--output", type=Path, metavar="FILE", help="stdout if absent")
    made.add_argument("--probabilities", action="store_true", help="the probability of every class")
    made.add_argument("--run-code", action="store_true", help=code)
    made = add("export", export, "a trained model as ONNX, checked against the original")
    made.add_argument("run", type=Path, help=run)
    made.add_argument("--output", type=Path, metavar="FILE", help="model.onnx in the run if absent")
    made.add_argument("--data", type=Path, metavar="PATH", help="samples for the check instead of made-up ones")
    made.add_argument("--run-code", action="store_true", help=code)


def _add_data(add: Callable[[str, Command, str], argparse.ArgumentParser]) -> None:
    """The commands that make data and weights ready."""
    made = add("sample", sample, "write learnable sample data, the input of the example jobs")
    made.add_argument("kind", choices=("images", "texts", "series", "table"), help="what to make")
    made.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    made.add_argument("--size", type=int, default=1200, help="images, texts, or rows (1200)")
    made.add_argument("--seed", type=int, default=0, help="the same seed gives the same data (0)")
    made = add("convert", convert, "a pickle checkpoint to safetensors, read apart without network")
    made.add_argument("file", type=Path, metavar="FILE", help="pytorch_model.bin, best_model.bin, *.pt")


def validate(given: argparse.Namespace) -> int:
    """Check a job spec."""
    from runtime import spec

    job = spec.load(given.job, given.set)
    print(f"{given.job}: valid ({job.name}, {job.task})")
    return 0


def facts(given: argparse.Namespace) -> int:
    """Show what this container may use."""
    from runtime.detect import detect
    from runtime.facts import render
    from runtime.table import console

    machine = detect(Path("runs"))
    if given.json:
        print(json.dumps(machine.to_json(), indent=1))
    else:
        console().print(render(machine))
    return 0


def plan(given: argparse.Namespace) -> int:
    """Show every decision."""
    from runtime import gpus, hardware, spec
    from runtime import plan as plans
    from runtime.detect import detect
    from runtime.table import console, render

    job = spec.load(given.job, given.set)
    machine = gpus.used(hardware.load(given.hardware) if given.hardware else detect(Path("runs")), job.limits.gpus)
    made = plans.resolve(job, machine, plain=given.plain)
    if given.json:
        print(json.dumps(made.to_json(), indent=1))
    else:
        console().print(render(made, job, machine))
    return 0


def train(given: argparse.Namespace) -> int:
    """Train or resume."""
    from runtime import supervise

    if given.plain and given.plan:
        raise SpecError("--plain and --plan together", "one of them", "leave one out")
    return supervise.train(
        supervise.Request(given.job, tuple(given.set), given.runs, given.plain, given.plan, given.new, given.trace)
    )


def launch(given: argparse.Namespace) -> int:
    """Train in a container."""
    from runtime import launch as launching

    return launching.launch(launching.Request(given.job, tuple(given.set), given.device, given.new))


def find_lr(given: argparse.Namespace) -> int:
    """Test learning rates."""
    from runtime import find_lr as finding

    return finding.find_lr(
        finding.Request(given.job, tuple(given.set), given.output, given.lowest, given.highest, given.steps)
    )


def memory(given: argparse.Namespace) -> int:
    """Measure memory."""
    from runtime import peaks

    return peaks.memory(peaks.Request(given.job, tuple(given.set), given.output))


def bench(given: argparse.Namespace) -> int:
    """Measure the ladder."""
    from runtime import bench as benching

    return benching.bench(
        benching.Request(given.job, tuple(given.set), tuple(given.against), given.output, given.rounds, given.json)
    )


def watch(given: argparse.Namespace) -> int:
    """Follow a run."""
    from runtime import watch_run

    return watch_run.watch(given.run)


def report(given: argparse.Namespace) -> int:
    """Write a report anew."""
    from runtime import report as reports

    reports.write(given.run)
    print(f"report {given.run}/report.html")
    return 0


def compare(given: argparse.Namespace) -> int:
    """Compare runs."""
    from runtime.compare import Request, compare

    return compare(Request(given.runs, given.output, given.json))


def doctor(given: argparse.Namespace) -> int:
    """Examine this machine."""
    from runtime.doctor import examine

    return examine(given.json)


def evaluate(given: argparse.Namespace) -> int:
    """Judge a trained model."""
    from runtime import judge

    return judge.judge(judge.Request(given.run, given.data, given.output, given.run_code))


def predict(given: argparse.Namespace) -> int:
    """Use a trained model."""
    from runtime import predict as predicting

    return predicting.predict(
        predicting.Request(given.run, given.inputs, given.format, given.output, given.probabilities, given.run_code)
    )


def export(given: argparse.Namespace) -> int:
    """Export a trained model."""
    from runtime import export as exporting

    return exporting.export(exporting.Request(given.run, given.output, given.data, given.run_code))


def sample(given: argparse.Namespace) -> int:
    """Write sample data."""
    from runtime import samples

    paths = samples.write(given.kind, given.folder, given.size, given.seed)
    megabytes = sum(path.stat().st_size for path in paths) / 1e6
    print(f"{given.folder}: {len(paths):,} file{'s' * (len(paths) > 1)}, {megabytes:.1f} MB")
    return 0


def convert(given: argparse.Namespace) -> int:
    """Convert a pickle checkpoint."""
    from runtime import convert as converting

    print("\n".join(converting.convert(given.file).lines()))
    return 0


def schema(given: argparse.Namespace) -> int:
    """Print the JSON schema."""
    from runtime import spec

    print(json.dumps(spec.schema(), indent=1))
    return 0
