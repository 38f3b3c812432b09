"""The commands: each hands its arguments to the package that does the work, which is imported only then."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar, cast, get_type_hints

from drivetrain.cli import json_output
from drivetrain.cli.arguments import TRAINING
from drivetrain.errors import DeviceError, SpecError
from drivetrain.launch import image_contents, shared_name
from drivetrain.system.console import open_console, say, say_aside, say_json
from drivetrain.system.installation import INSTALL_TORCH

Request = TypeVar("Request")
FUNCTIONS = {
    "bench lr": "drivetrain.tuning.measuring_request:measure",
    "bench memory": "drivetrain.tuning.measuring_request:measure",
    "bench models": "drivetrain.baselines.baseline_command:measure_baselines",
    "bench speed": "drivetrain.tuning.measuring_request:measure",
    "compare": "drivetrain.report.comparison:compare",
    "evaluate": "drivetrain.inference.evaluate:evaluate",
    "export": "drivetrain.inference.export:export",
    "fetch": "drivetrain.cli.fetch:fetch",
    "init": "drivetrain.cli.init:init",
    "predict": "drivetrain.inference.predict:predict",
    "repeat": "drivetrain.supervisor.repeat:repeat",
    "sweep": "drivetrain.supervisor.sweep:sweep",
}
"""Functions of commands in other modules, which take a request or the options; the others are functions of this module."""
OPTION_NAMES = {"spec": "job", "assignments": "set", "as_json": "json", "kind": "KIND"}
"""By field of a request: the option that it is, if that has another name."""
FORWARDED_SWITCHES = ("plain", "new", "if_unfinished", "trace", "verbose")
FORWARDED_NUMBERS = ("seeds", "folds")


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the command of a parsed command line, whose words are `arguments`, here or in a container."""
    if image_contents.torch_is_missing() or options.command == "export":
        from drivetrain.launch import run_in_image

        if run_in_image.is_needed(options.command):
            return run_in_image.run(options, arguments)
        if options.command in TRAINING:
            return run_in_container(options)
    if image := os.environ.get("DRIVETRAIN_IMAGE"):
        image_contents.check_in_container(image)
        if options.command in TRAINING:
            shared_name.report_other_checkout()
    function = find_function(options.command)
    request = get_type_hints(function).get("request")
    return function(options if request is None else make_request(request, options))


def find_function(command: str) -> Callable[[Any], int]:
    """Find the function of a command, which takes a request or the parsed command line."""
    address = FUNCTIONS.get(command, f"{__name__}:{command}")
    return cast(Callable[[Any], int], resolve_name(address))


def make_request(kind: Callable[..., Request], options: argparse.Namespace, **values: Any) -> Request:
    """A request whose fields are the options of the same names, and these values; other fields keep their defaults.

    Args:
        kind: a dataclass.
        values: fields that are no options, or not as they are.
    """
    for field in dataclasses.fields(cast(Any, kind)):
        option = OPTION_NAMES.get(field.name, field.name)
        if field.name not in values and hasattr(options, option):
            value = getattr(options, option)
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def validate(options: argparse.Namespace) -> int:
    """Check one or several job files; with several, the mistakes of all are shown, and the first exit code counts."""
    from drivetrain.cli import validation
    from drivetrain.job_spec import load_job as job_spec

    if options.schema:
        say_json(job_spec.schema())
        return 0
    if not options.jobs:
        raise SpecError("drivetrain validate: JOB is missing", "job files (YAML), or --schema", "name a job file")
    return validation.validate(options.jobs, options.set, as_json=options.json)


def _show_hardware(options: argparse.Namespace) -> int:
    """Show the hardware that this process may use."""
    from drivetrain.hardware.detect import detect
    from drivetrain.hardware.facts_table import render_facts
    from drivetrain.hardware.neighbors import add_neighbors

    machine = add_neighbors(detect(Path("runs")))
    if options.json:
        say_json(machine.to_json())
    else:
        open_console().print(render_facts(machine))
    return 0


def plan(options: argparse.Namespace) -> int:
    """Show every decision, or without a job the hardware alone."""
    if options.job is None:
        if options.set or options.hardware:
            raise SpecError("drivetrain plan: JOB is missing", "without JOB no option but --json", "name a job file")
        return _show_hardware(options)
    from drivetrain.hardware import facts, gpu_selection
    from drivetrain.hardware.detect import detect
    from drivetrain.hardware.neighbors import add_neighbors
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.launch import expected_container
    from drivetrain.plan import plan as plans
    from drivetrain.plan.plan_table import render

    show = say_aside if options.json else say
    job = job_spec.load(options.job, options.set)
    machine = gpu_selection.select_gpus(
        facts.read_hardware(options.hardware) if options.hardware else add_neighbors(detect(Path("runs"))),
        job.limits.gpus,
    )
    if not options.hardware:
        machine, container_note = expected_container.expect_hardware(machine, job)
        if container_note:
            show(container_note)
    resolved = plans.resolve(job, machine)
    if options.json:
        say_json(resolved.to_json())
    else:
        open_console().print(render(resolved, job, machine))
    return 0


def train(options: argparse.Namespace) -> int:
    """Train or resume."""
    from drivetrain.job_spec.spec_source import COPY_VARIABLE
    from drivetrain.plan import plan_table
    from drivetrain.supervisor import stored_job, supervisor, trainer_error
    from drivetrain.supervisor.supervisor import TrainRequest

    opened: list[Path] = []
    copy = os.environ.get(COPY_VARIABLE)
    request = make_request(
        TrainRequest,
        options,
        source=stored_job.find_source(options.job, options.set, Path(copy) if copy else None),
        report_run=opened.append,
        shown=Path(shown_plan) if (shown_plan := os.environ.get(plan_table.SHOWN_PLAN)) else None,
    )
    if not options.json:
        return supervisor.train(request)
    with json_output.text_on_stderr() as error_file:
        code = supervisor.train(request)
        error = trainer_error.read_error(error_file) if code else {}
    say_json(json_output.describe_run(opened[-1] if opened else None, code, error))
    return code


def launch(options: argparse.Namespace) -> int:
    """Train in a container."""
    from drivetrain.launch import container

    return container.launch(make_request(container.LaunchRequest, options, flags=list_flags(options), command="train"))


def run_in_container(options: argparse.Namespace) -> int:
    """Run a command that trains in a container; returns the exit code.

    Raises:
        DeviceError: if training in the container does not support an option or the working folder.
        DrivetrainError: if the spec is invalid, or the container cannot be started.
    """
    is_unsupported = any(getattr(options, name, None) for name in ("plan", "json"))
    if is_unsupported or options.runs != Path("runs"):
        limits = "no --plan, --runs or --json" if options.command == "train" else "no --runs"
        raise DeviceError(
            f"torch is not installed here, and training in the container supports {limits}; it writes to runs/",
            "the other options",
            f"remove these options, or run `{INSTALL_TORCH}` to install torch here",
        )
    say(
        "torch is not installed here: training in a container, like `drivetrain launch`; "
        f"`{INSTALL_TORCH}` installs torch here"
    )
    from drivetrain.launch import container

    return container.launch(make_request(container.LaunchRequest, options, flags=list_flags(options)))


def list_flags(options: argparse.Namespace) -> tuple[str, ...]:
    """List the command line options that are passed on to the command in the container."""
    flags = [f"--{name.replace('_', '-')}" for name in FORWARDED_SWITCHES if getattr(options, name, False)]
    for name in FORWARDED_NUMBERS:
        if (value := getattr(options, name, None)) is not None:
            flags += [f"--{name}", str(value)]
    return tuple(flags)


def watch(options: argparse.Namespace) -> int:
    """Show a run live."""
    from drivetrain.tracking.live import live_view as watching

    return watching.watch(options.run)


def report(options: argparse.Namespace) -> int:
    """Write a report again."""
    from drivetrain.report import write as reports

    reports.write(options.run)
    say(f"report {options.run}/report.html")
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Examine this machine."""
    from drivetrain.cli.doctor.doctor import examine

    return examine()
