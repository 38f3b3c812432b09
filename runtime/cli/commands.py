"""The commands: one small function each, which hands its arguments to the package that does the work."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from runtime.cli import cluster_options, contained, csv_option
from runtime.cli.fetch import fetch
from runtime.cli.init import init
from runtime.cli.repeat import repeat, sweep
from runtime.cli.track import track
from runtime.errors import SpecError
from runtime.launch import image_contents, run_in_image
from runtime.system.console import console, say, say_aside, say_json
from runtime.system.units import format_bytes, parse_bytes

Command = Callable[[argparse.Namespace], int]


def validate(given: argparse.Namespace) -> int:
    """Check one or several job files; with several, the mistakes of all are shown, and the first exit code counts."""
    from runtime.cli import validation

    return validation.validate(given.jobs, given.set, remote=given.remote)


def facts(given: argparse.Namespace) -> int:
    """Show what this container may use."""
    from runtime.hardware.calibration_file import attached
    from runtime.hardware.detect import detect
    from runtime.hardware.facts_table import render

    machine = attached(detect(Path("runs")))
    if given.json:
        say_json(machine.to_json())
    else:
        console().print(render(machine))
    return 0


def plan(given: argparse.Namespace) -> int:
    """Show every decision."""
    from runtime.cli import plan_nodes
    from runtime.hardware import calibration_file, facts, gpu_selection
    from runtime.hardware.detect import detect
    from runtime.job_spec import load as job_spec
    from runtime.launch import expected_container
    from runtime.plan import evidence
    from runtime.plan import plan as plans
    from runtime.plan.plan_table import render

    show = say_aside if given.json else say
    job = job_spec.load(given.job, given.set)
    machine = gpu_selection.select_gpus(
        facts.load(given.hardware) if given.hardware else detect(Path("runs")), job.limits.gpus
    )
    if not given.hardware:
        machine, line = expected_container.expected(machine, job)
        machine = calibration_file.attached(machine)
        for note in filter(None, (line, calibration_file.note(machine, elsewhere=bool(line)))):
            show(note)
    several = list(plan_nodes.lines(given, job, machine))
    known = {} if given.hardware else evidence.started(machine, job)
    made = plans.resolve(job, machine, plain=given.plain, measured=known)
    if given.json:
        say_json(made.to_json())
    else:
        console().print(render(made, job, machine, whole=given.all))
    for line in several:
        show(line)
    return 0


def train(given: argparse.Namespace) -> int:
    """Train or resume."""
    from runtime.distributed.placement import Options
    from runtime.job_spec.spec_source import COPY_VARIABLE
    from runtime.plan import show_plan
    from runtime.supervisor import supervisor
    from runtime.supervisor.extended_run import ExtendRequest
    from runtime.supervisor.train_request import TrainRequest

    if word := os.environ.get("DRIVETRAIN_IMAGE"):
        image_contents.check_in_container(word)
    if run_in_image.missing():
        return contained.train(given)
    extend = ExtendRequest(given.extend, given.restart_schedule) if given.extend else None
    return supervisor.train(
        TrainRequest(
            given.job,
            tuple(given.set),
            given.runs,
            given.plain,
            given.plan,
            given.new,
            extend,
            given.trace,
            place=Options(given.nodes, given.node, given.meet),
            shown=Path(shown) if (shown := os.environ.get(show_plan.SHOWN)) else None,
            copy=Path(copy) if (copy := os.environ.get(COPY_VARIABLE)) else None,
        )
    )


def launch(given: argparse.Namespace) -> int:
    """Train in a container, or on a cluster."""
    if given.on:
        return cluster_options.launch(given)
    cluster_options.check_absent(given)
    from runtime.launch import container

    flags = contained.flags(given)
    return container.launch(
        container.LaunchRequest(
            given.job, tuple(given.set), given.device, flags, given.extend, network=given.network, image=given.image
        )
    )


def find_lr(given: argparse.Namespace) -> int:
    """Test learning rates."""
    from runtime.tuning import lr_range

    return lr_range.find_lr(
        lr_range.LrRangeRequest(given.job, tuple(given.set), given.output, given.lowest, given.highest, given.steps)
    )


def memory(given: argparse.Namespace) -> int:
    """Measure memory."""
    from runtime.tuning.memory import profile

    return profile.memory(profile.MemoryRequest(given.job, tuple(given.set), given.output))


def bench(given: argparse.Namespace) -> int:
    """Measure what each optimization gains."""
    from runtime.tuning.bench import bench as benching

    return benching.bench(
        benching.BenchRequest(given.job, tuple(given.set), given.output, tuple(given.against), given.rounds, given.json)
    )


def calibrate(given: argparse.Namespace) -> int:
    """Measure this machine once."""
    from runtime.cli import calibration_table

    return calibration_table.show(as_json=given.json, again=given.again)


def watch(given: argparse.Namespace) -> int:
    """Show a run live."""
    from runtime.supervisor.remote_copy import cached_run
    from runtime.tracking.live import watch as watching

    if cached_run.is_cached(given.run):
        return watching.show_copied(given.run)
    return watching.watch(given.run)


def report(given: argparse.Namespace) -> int:
    """Write a report again."""
    from runtime.report import write as reports

    reports.write(given.run)
    say(f"report {given.run}/report.html")
    return 0


def compare(given: argparse.Namespace) -> int:
    """Compare runs."""
    from runtime.report.comparison import CompareRequest, compare

    return compare(CompareRequest(given.runs, given.output, given.json))


def reproduce(given: argparse.Namespace) -> int:
    """Train a finished run again."""
    from runtime.supervisor import reproduce as reproducing

    return reproducing.reproduce(reproducing.ReproduceRequest(given.run, given.runs, given.run_code))


def doctor(given: argparse.Namespace) -> int:
    """Examine this machine."""
    from runtime.cli.doctor.doctor import examine

    return examine(given.json)


def evaluate(given: argparse.Namespace) -> int:
    """Evaluate a trained model."""
    from runtime.inference import evaluate as evaluating

    return evaluating.judge(
        evaluating.EvaluateRequest(given.run, given.data, given.output, given.run_code, csv_option.parse(given.csv))
    )


def predict(given: argparse.Namespace) -> int:
    """Predict with a trained model."""
    from runtime.inference import predict as predicting

    return predicting.predict(
        predicting.PredictRequest(
            given.run,
            given.inputs,
            given.format,
            given.output,
            given.probabilities,
            given.run_code,
            csv_option.parse(given.csv),
        )
    )


def export(given: argparse.Namespace) -> int:
    """Export a trained model."""
    from runtime.inference import export as exporting

    return exporting.export(
        exporting.ExportRequest(given.run, given.output, given.data, given.run_code, csv_option.parse(given.csv))
    )


def sample(given: argparse.Namespace) -> int:
    """Write sample data."""
    from runtime.data.sample_data import write as sample_data

    paths = sample_data.write(given.kind, given.folder, given.size, given.seed)
    megabytes = sum(path.stat().st_size for path in paths) / 1e6
    say(f"{given.folder}: {len(paths):,} file{'s' * (len(paths) > 1)}, {megabytes:.1f} MB")
    return 0


def shard(given: argparse.Namespace) -> int:
    """Write a folder of images as shards."""
    from runtime.data.streaming import destination, write_shards

    try:
        size = parse_bytes(given.size)
    except ValueError:
        raise SpecError(f"--size: {given.size} is no size", "a size with its unit: 64m, 1g", "change it") from None
    target = destination.open_destination(given.to)
    made = write_shards.write(given.source, target, size, given.seed, say, given.format)
    count, samples = len(made.shards), sum(each.samples for each in made.shards)
    say(f"{given.to}: {count:,} shards, {samples:,} images, {format_bytes(sum(each.bytes for each in made.shards))}")
    return 0


def convert(given: argparse.Namespace) -> int:
    """Convert a pickle checkpoint."""
    from runtime.pretrained import convert as converting

    for line in converting.convert(given.file).lines():
        say(line)
    return 0


def schema(given: argparse.Namespace) -> int:
    """Print the JSON schema."""
    from runtime.job_spec import load as job_spec

    say_json(job_spec.schema())
    return 0


def completion(given: argparse.Namespace) -> int:
    """Print the completion of a shell."""
    from runtime.cli import arguments
    from runtime.cli.completion import script

    print(script(given.shell, arguments.parser()), end="")
    return 0


COMMANDS: dict[str, Command] = {
    "validate": validate,
    "facts": facts,
    "plan": plan,
    "schema": schema,
    "completion": completion,
    "train": train,
    "launch": launch,
    "repeat": repeat,
    "sweep": sweep,
    "find-lr": find_lr,
    "memory": memory,
    "bench": bench,
    "calibrate": calibrate,
    "watch": watch,
    "report": report,
    "compare": compare,
    "track": track,
    "reproduce": reproduce,
    "doctor": doctor,
    "evaluate": evaluate,
    "predict": predict,
    "export": export,
    "sample": sample,
    "shard": shard,
    "init": init,
    "fetch": fetch,
    "convert": convert,
}
