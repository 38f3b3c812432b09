"""Checks the search space of a sweep: every key must exist, and every choice must be valid. The first trial checks ranges."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

from pydantic import JsonValue

from drivetrain.errors import DataError, Problem, SpecError, nearest
from drivetrain.job import Document, Job
from drivetrain.job.formatting import format_value
from drivetrain.job.sweep import Parameter, SearchRange, format_assignments
from drivetrain.job_spec.validation_errors import UNKNOWN_KEY
from drivetrain.job_spec.yaml_file import put_value

FIXED = ("name", "task", "limits", "environment", "monitor", "checkpoint", "baselines", "sweep")
"""Sections that no trial may change, because they do not affect the weights or decide how trials are compared."""
Check = Callable[[Document], Job]


def check_space(job: Job, check: Check) -> tuple[Parameter, ...]:
    """Check the search space; returns its keys as parameters.

    Args:
        job: valid job with a sweep.
        check: function that builds a job from a document.

    Raises:
        SpecError: with all problems, each at the position of its value.
        DataError: if a choice names a path that does not exist.
    """
    assert job.sweep is not None
    problems, located, missing = list(_check_metric(job)), list[Parameter](), list[DataError]()
    for key, values in job.sweep.space.items():
        key_problems = list(_check_key(job, key, values))
        if not key_problems:
            for path, value in _list_values(key, values):
                try:
                    key_problems += _list_refusals(job, check, key, job.document.place(path), value)
                except DataError as error:
                    missing.append(error)
        problems += key_problems
        if not key_problems and not missing:
            located.append(_build_parameter(job, check, key, values))
    if problems:
        raise SpecError(dict.fromkeys(problems))
    if missing:
        raise missing[0]
    return tuple(located)


def list_choices(job: Job) -> list[str]:
    """List every choice of a sweep that can name a file, a folder or a network, in the form of `--set`."""
    assignments: list[str] = []
    for parameter in job.parameters:
        for choice in parameter.choices:
            if isinstance(choice, str | dict):
                assignments += format_assignments({parameter.key: choice})
    return assignments


def _check_metric(job: Job) -> Iterator[Problem]:
    """Yield a problem if the metric of the sweep is not a metric of the task."""
    metric = job.sweep.metric if job.sweep else None
    if metric is not None and metric not in job.metrics():
        metrics = ", ".join(job.metrics())
        yield job.problem(
            ("sweep", "metric"),
            f"is {format_value(metric)}",
            f"one of {metrics}",
            nearest(metric, job.metrics()) or "pick one",
        )


def _check_key(job: Job, key: str, values: SearchRange | list[JsonValue]) -> Iterator[Problem]:
    """Yield the problems of a key and its values that do not depend on the rest of the job."""
    key_path = ("sweep", "space", key)
    section = key.partition(".")[0]
    if section in FIXED:
        possible = "keys of data, model, train, optimize"
        yield job.problem(key_path, f"{section} is the same in all trials", possible, "remove it")
    elif isinstance(values, list) and len(values) < 2:
        hint = f", or set {key} itself to {format_value(values[0])}" if values else ""
        description = f"is the list [{format_value(values[0])}], a single value" if values else "is an empty list"
        yield job.problem(
            key_path, description, "two values or more, or a range {low: ..., high: ...}", f"add a value{hint}"
        )
    elif isinstance(values, list):
        for index, value in enumerate(values):
            # Python treats 1, True and 1.0 as equal, and as choices of a search they are the same, too.
            if value in values[:index]:
                yield job.problem(key_path, f"has {format_value(value)} twice", "different values", "remove one")


def _list_values(key: str, values: SearchRange | list[JsonValue]) -> Iterator[tuple[tuple[str | int, ...], JsonValue]]:
    """Yield the values to check, each with its path in the spec: all choices, or the low end of a range."""
    key_path = ("sweep", "space", key)
    if isinstance(values, list):
        yield from (((*key_path, index), value) for index, value in enumerate(values))
    else:
        yield (*key_path, "low"), values.low


def _list_refusals(job: Job, check: Check, key: str, location: str, value: JsonValue) -> Iterator[Problem]:
    """Yield the problems of the job with this value; raises DataError if it is a path that does not exist."""
    try:
        _build_with(job, check, key, value, location)
    except SpecError as error:
        for problem in error.problems or [Problem(location, key, error.given, error.possible, error.action)]:
            # A choice can make another key invalid: the choice adamw does so with momentum.
            is_about_key = problem.key == key or problem.key.startswith((f"{key}.", f"{key}["))
            if problem.key == key and problem.given == UNKNOWN_KEY:
                yield replace(problem, place=job.document.place(("sweep", "space", key)))
            else:
                condition = "" if is_about_key else f", if {key} is {format_value(value)}"
                yield replace(problem, given=f"{problem.given}{condition}")


def _build_with(job: Job, check: Check, key: str, value: JsonValue, location: str) -> None:
    document = copy.deepcopy(job.document)
    del document.data["sweep"]
    put_value(document, tuple(key.split(".")), value, location)
    check(document)


def _build_parameter(job: Job, check: Check, key: str, values: SearchRange | list[JsonValue]) -> Parameter:
    if isinstance(values, list):
        return Parameter(key, choices=tuple(values))
    numbers = (values.low, values.high, values.step or 0)
    is_integer = all(isinstance(number, int) for number in numbers)
    if is_integer and values.step is None:
        # `dropout: {low: 0, high: 1}` means all numbers in between; `model.width: {low: 8, high: 64}` only whole numbers.
        try:
            _build_with(job, check, key, values.low + 0.5, job.document.place(("sweep", "space", key)))
            is_integer = False
        except (SpecError, DataError):
            pass
    return Parameter(key, values.low, values.high, values.log, values.step, is_integer)
