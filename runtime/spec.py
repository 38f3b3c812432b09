"""Reading a spec: YAML file and `--set` values in, a checked Job out, or every problem at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model

from runtime import optimizations
from runtime.errors import DataError, Problem, SpecError, nearest
from runtime.job import JOBS, Document, Job, dotted
from runtime.job.document import parse
from runtime.job.problems import problems
from runtime.job.values import Spec


def load(path: Path | str, assignments: Sequence[str] = ()) -> Job:
    """Read and check one job spec.

    Args:
        path: the YAML file.
        assignments: `key.path=value` texts, applied over the file.

    Raises:
        SpecError: with every problem, each with file:line:column and key.
        DataError: if a path that the spec names is not there.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read((1 << 20) + 1)
    except OSError as error:
        raise SpecError(
            f"{path}: {error.strerror or error}", "a job spec in YAML", "see the examples in jobs/"
        ) from None
    return _load(content, path, assignments)


def _load(content: bytes, path: Path, assignments: Sequence[str]) -> Job:
    document = parse(content, str(path))
    for assignment in assignments:
        document.set(assignment)
    job = check(document)
    job._folder = path.parent
    _check_paths(job)
    return job


def check(document: Document) -> Job:
    """A Job from a document.

    Raises:
        SpecError: with every problem.
    """
    found = list(_task_problems(document))
    kind: type[Job] = JOBS.get(str(document.data.get("task")), Job)
    job: Job | None = None
    ignored = {"model"} if kind is Job else set()
    try:
        job = kind.model_validate({k: v for k, v in document.data.items() if k not in ignored})
    except ValidationError as error:
        known = problems(error, kind, document)
        found += [p for p in known if p.key != "task" and not (kind is Job and p.key.startswith("data."))]
    found += _optimize_problems(document)
    if job is not None:
        found += _combination_problems(job, document)
    if found or job is None:
        raise SpecError(sorted(found, key=_line))
    job._document = document
    return job


def _line(problem: Problem) -> tuple[int, int]:
    line, column = problem.place.rsplit(":", 2)[1:]
    return int(line), int(column)


def _task_problems(document: Document) -> Iterator[Problem]:
    known = ", ".join(JOBS)
    if "task" not in document.data:
        yield Problem(document.place(()), "task", "is missing", f"one of {known}", "add `task:`")
    elif document.data["task"] not in JOBS:
        task = document.data["task"]
        yield Problem(document.place(("task",)), "task", f"is {task!r}", f"one of {known}",
                      nearest(str(task), JOBS) or "pick one")  # fmt: skip


@cache
def settings() -> type[BaseModel]:
    """The `optimize:` part: one key per optimization, its own values or auto."""
    fields: dict[str, Any] = {
        o.name: (o.values | Literal["auto"], Field("auto", description=o.sentence)) for o in optimizations.every()
    }
    return create_model("Optimize", __base__=Spec, **fields)


def _optimize_problems(document: Document) -> list[Problem]:
    values = document.data.get("optimize")
    if not isinstance(values, dict):
        return []
    wrapper = create_model("Wrapper", __base__=Spec, optimize=(settings(), ...))
    try:
        wrapper.model_validate({"optimize": values})
    except ValidationError as error:
        return problems(error, wrapper, document)
    return []


def _combination_problems(job: Job, document: Document) -> Iterator[Problem]:
    """What is right by itself and wrong together."""
    known = job.metrics()
    stopping, schedule = job.train.early_stopping, job.train.schedule
    watched = [(("checkpoint", "best"), job.checkpoint.best), (("train", "schedule", "metric"), getattr(schedule, "metric", None)),
               (("train", "early_stopping", "metric"), stopping.metric if stopping else None)]  # fmt: skip
    for path, metric in watched:
        if metric is not None and metric not in known:
            yield Problem(document.place(path), dotted(path), f"is {metric!r}",
                          f"a metric of this task: {', '.join(known)}", nearest(metric, known) or "pick one")  # fmt: skip
    model = getattr(job, "model", None)
    if model is not None and hasattr(model, "file") and not Path(model.file).suffix == ".py":
        yield Problem(document.place(("model", "file")), "model.file", f"is {model.file!r}",
                      "a Python file beside the job", "name a .py file")  # fmt: skip
    if job.train.loss is not None and (allowed := job.losses()) and job.train.loss.name not in allowed:
        yield Problem(document.place(("train", "loss")), "train.loss", f"is {job.train.loss.name!r}",
                      f"for {job.task}: {', '.join(allowed)}", "choose one of these")  # fmt: skip


def _check_paths(job: Job) -> None:
    lost = [(key, path) for key, path in job.data_paths() if not job.resolve(path).exists()]
    if lost:
        key, given = lost[0]
        more = "".join(f"\n{job.document.place(k)}: {'.'.join(k)}: {p!r} is not there" for k, p in lost[1:])
        raise DataError(
            f"{job.document.place(key)}: {'.'.join(key)}: {given!r} is not there{more}",
            f"a path relative to {job.folder or '.'} or to {Path.cwd()}",
            "check the spelling; in a container only the project and mounted folders can be seen",
        )


def schema() -> dict[str, Any]:
    """The JSON schema of the spec."""
    kinds = [
        create_model(kind.__name__, __base__=kind, optimize=(settings(), Field(settings()(), validate_default=False)))
        for kind in JOBS.values()
    ]
    union = Annotated[Union[tuple(kinds)], Field(discriminator="task")] if len(kinds) > 1 else kinds[0]  # noqa: UP007
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Drivetrain job",
            **TypeAdapter(union).json_schema()}  # fmt: skip
