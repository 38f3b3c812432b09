"""Loads a job file: turns YAML and `--set` values into a checked Job, or into a list of all problems."""

from __future__ import annotations

import contextlib
import difflib
import errno
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model

from drivetrain import optimizations
from drivetrain.errors import DataError, Problem, SpecError
from drivetrain.job import Document, Job, dot_key, remote_data
from drivetrain.job import custom as custom_job
from drivetrain.job.formatting import format_value
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.user_files import CHECK_PATH, find_obstacle, suggest_nearest_path
from drivetrain.job.values import Spec
from drivetrain.job_spec import data_columns, named_splits, sweep_space
from drivetrain.job_spec.combinations import TABLES, combination_problems
from drivetrain.job_spec.validation_errors import UNKNOWN_KEY, drop_invalid_values, list_problems
from drivetrain.job_spec.yaml_file import MAX_BYTES, read, set_value
from drivetrain.pretrained import earlier_run
from drivetrain.storage.remote_address import is_remote
from drivetrain.system.files import TAKE_FILE, describe_special_file, open_file
from drivetrain.tasks import JOBS, suggest_task


def load(
    path: Path | str,
    assignments: Sequence[str] = (),
    *,
    folder: Path | None = None,
    measured: Mapping[str, int] | None = None,
    locate: Callable[[Job], Job] | None = None,
    content: bytes | None = None,
    is_copied: bool = False,
) -> Job:
    """Read and check a job file.

    Args:
        path: YAML file.
        assignments: `key.path=value` texts that override the file.
        folder: folder from which relative paths start; None for the folder of the file.
        measured: measured numbers by key of `train:`, in place of `batch_size: auto`.
        locate: function that finds remote data of a job on the Hugging Face hub, in stores and on the web; None looks
            only in the caches, and leaves data that is missing there unchecked.
        content: bytes of the file if it was read before; None reads it now.
        is_copied: whether the user's code runs from a copy, which was checked when it was made.

    Raises:
        SpecError: with all problems, each with file:line:column and key; or if the run that the job starts from cannot
            be used or contradicts a key; or if data on the hub cannot be used.
        DataError: if a path in the spec does not exist, or a table lacks columns.
    """
    path = Path(path)
    document = read_spec(path, assignments, content)
    if measured and isinstance(train := document.data.get("train"), dict):
        # The position of the key stays unchanged, because the user wrote `auto` there.
        document.data["train"] = {**train, **measured}
    job = _build_checked(document, folder or path.parent, locate, is_copied=is_copied)
    if job.sweep:
        job._parameters = sweep_space.check_space(
            job, lambda document: _build_checked(document, job.folder, is_copied=is_copied)
        )
    return job


def read_spec(path: Path, assignments: Sequence[str], content: bytes | None = None) -> Document:
    """Read a job file and apply the assignments; the document collects all other mistakes.

    Args:
        path: YAML file.
        assignments: `key.path=value` texts that override the file.
        content: bytes of the file if it was read before; None reads it now.

    Raises:
        SpecError: if the file cannot be read, or is not one YAML mapping.
    """
    document = read(read_content(path) if content is None else content, str(path))
    for assignment in assignments:
        try:
            set_value(document, assignment)
        except SpecError as error:
            document.problems += error.problems
    _replace_length(document)
    return document


def _replace_length(document: Document) -> None:
    """Remove `epochs` and `steps` of the file if `--set` gives `within`, and the other way round: a run has one length."""
    train = document.data.get("train")
    if not isinstance(train, dict):
        return
    lengths = {key for key in ("epochs", "steps", "within") if train.get(key) is not None}
    set_keys = {key for key in lengths if document.place(("train", key)).startswith("--set ")}
    counts, times = set_keys - {"within"}, set_keys & {"within"}
    if bool(counts) == bool(times):
        return  # nothing to replace, or a contradiction on the command line itself
    for key in sorted(lengths - set_keys):
        if (key == "within") != bool(times):
            setting = ", ".join(f"train.{name}: {format_value(train[name])}" for name in sorted(set_keys))
            document.replaced.append(f"--set: {setting} replaces train.{key}: {format_value(train[key])}")
            del train[key], document.places["train", key]


def read_content(path: Path) -> bytes:
    """Read the content of a job file; raises SpecError if it cannot be read, or is a folder or a table of data."""
    if path.is_dir() or (path.suffix.lower() in (*TABLES, ".npz") and path.exists()):
        raise SpecError(
            f"{path}: this is {'a folder' if path.is_dir() else 'data'}, not a job file",
            "a job file in YAML",
            f"draft one for these data: `drivetrain init {shlex.quote(str(path))}`",
        )
    try:
        with open_file(path) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        special = TAKE_FILE if error.errno == errno.EINVAL else ""
        raise SpecError(
            f"{path}: {error.strerror or error}",
            "a job file in YAML",
            special or _nearest_job(path) or "see the examples in jobs/, or draft one: `drivetrain init DATA`",
        ) from None


def _nearest_job(path: Path) -> str:
    """Suggest the job file with the most similar name in the same folder or in jobs/; empty if none is similar."""
    for folder in dict.fromkeys((path.parent, Path("jobs"))):
        with contextlib.suppress(OSError):
            files = [file for file in sorted(folder.iterdir()) if file.suffix in (".yaml", ".yml") and file.is_file()]
            stems = {file.stem: file for file in files}
            for stem in difflib.get_close_matches(path.stem, stems, n=1, cutoff=0.75):
                return f'did you mean "{stems[stem]}"?'
    return ""


def _build_checked(
    document: Document, folder: Path, locate: Callable[[Job], Job] | None = None, *, is_copied: bool = False
) -> Job:
    """Build a Job from a document, and check its paths, columns, code and earlier run."""
    job = check(document)
    job._folder = folder
    job = _locate_data(job, locate)
    job = named_splits.name_splits(job)
    if not is_copied and (problems := list(custom_job.find_problems(job))):
        raise SpecError(sorted(problems, key=_sort_key))
    _check_paths(job)
    named_splits.check_test(job)
    weights_are_remote = any(is_remote(path) and not job.resolve(path).exists() for _, path in job.model_paths())
    if not weights_are_remote and (earlier := earlier_run.find(job)):
        data_columns.check_earlier_run(earlier)
    data_columns.check_headers(job)
    return job


def _locate_data(job: Job, locate: Callable[[Job], Job] | None) -> Job:
    """Return the job with its data on the hub and in stores located; the code for both is imported only if needed."""
    on_hub = any(is_on_hub(text) for _, text in job.data_paths())
    if not on_hub and not remote_data.list_remote_paths(job):
        return job
    if locate:
        return locate(job)
    from drivetrain.job_spec import located_data

    return located_data.use_cached(job)


def check(document: Document, kind: type[Job] | None = None) -> Job:
    """Build a Job from a document.

    Args:
        kind: class of the task; None for the class of the document's `task:`.

    Raises:
        SpecError: with all problems.
    """
    problems_in_spec = [*document.problems, *([] if kind else _check_task(document))]
    data, kind = dict(document.data), kind or _find_task_class(document)
    job: Job | None = None
    try:
        # Validated twice: the class with the optimizations' types finds their mistakes, but the job is of the task's class.
        _add_optimization_types(kind).model_validate(data)
        job = kind.model_validate(data)
    except ValidationError as error:
        problems_in_spec += _drop_consequences(
            list_problems(error, _add_optimization_types(kind), document), document, known_task=kind is not Job
        )
        problems_in_spec += _find_combination_problems(
            kind, drop_invalid_values(data, error, document), document, problems_in_spec
        )
    if job is not None and kind is not Job:
        job._document = document
        problems_in_spec += [*combination_problems(job), *job.problems()]
    if problems_in_spec or job is None:
        raise SpecError(sorted(problems_in_spec, key=_sort_key))
    return job


def _find_combination_problems(
    kind: type[Job], data: dict[str, object], document: Document, problems: list[Problem]
) -> list[Problem]:
    """List the problems of the valid values with each other, so that all problems are reported at once."""
    # Task and `data:` determine which metrics and losses exist, so both must be valid.
    if kind is Job or any(problem.key.startswith("data") for problem in problems):
        return []
    try:
        job = kind.model_validate({"name": "job"} | data)
    except ValidationError:
        return []
    job._document = document
    return list(combination_problems(job))


def _find_task_class(document: Document) -> type[Job]:
    """Find the class of the task; Job, which has the common keys, if the task is unknown."""
    task = document.data.get("task")
    return JOBS.get(task, Job) if isinstance(task, str) else Job


def _drop_consequences(problems: list[Problem], document: Document, *, known_task: bool) -> Iterator[Problem]:
    """Yield the problems that do not merely follow from an unreadable value or an unknown task."""
    unread_keys = [dot_key(path) for path in document.unread]
    for problem in problems:
        is_consequence = any(
            problem.key == key or problem.key.startswith((f"{key}.", f"{key}[")) or key.startswith(f"{problem.key}[")
            for key in unread_keys
        )
        # Without the task, the keys of `model:` and `data:` are unknown.
        depends_on_task = problem.key == "model" or problem.key.startswith("data.")
        is_about_task = problem.key == "task" or (depends_on_task and problem.given == UNKNOWN_KEY)
        if not is_consequence and (known_task or not is_about_task):
            yield problem


def _sort_key(problem: Problem) -> tuple[int, int]:
    line, column = problem.place.rsplit(":", 2)[1:]
    return int(line), int(column)


def _check_task(document: Document) -> Iterator[Problem]:
    tasks = ", ".join(JOBS)
    if "task" not in document.data:
        yield Problem(document.place(()), "task", "is missing", f"one of {tasks}", "add `task:`")
    elif _find_task_class(document) is Job and ("task",) not in document.unread:
        task = document.data["task"]
        yield Problem(
            document.place(("task",)),
            "task",
            f"is {format_value(task)}",
            f"one of {tasks}",
            suggest_task(str(task)),
        )


@cache
def optimize_model() -> type[BaseModel]:
    """Return the class of `optimize:`: one key per optimization, with its own values or auto."""
    fields: dict[str, Any] = {}
    for optimization in optimizations.every():
        field = Field("auto", description=optimization.sentence)
        fields[optimization.name] = (optimization.values | Literal["auto"], field)
    measure: Any = (
        Literal["off", "auto", "full"],
        Field(
            "auto",
            description="measure competing values before training: "
            "auto spends up to 2 % of a run of five minutes or more, full always measures, off never; "
            "in shorter runs auto compares the first steps in a short number format with fp32",
        ),
    )
    return create_model("Optimize", __base__=Spec, measure=measure, **fields)


@cache
def _add_optimization_types(kind: type[Job]) -> type[Job]:
    """Return the class of a task with the value types of all optimizations, for validation and the schema."""
    optimize: Any = (optimize_model(), Field(optimize_model()(), description=kind.model_fields["optimize"].description))
    return create_model(kind.__name__, __base__=kind, optimize=optimize)


def _check_paths(job: Job) -> None:
    """Check that all local data and weights of a job can be read.

    Raises:
        DataError: if files are missing or cannot be read; lists all of them.
    """
    unfetched = job.list_unfetched()
    data = [(key, path) for key, path in job.data_paths() if (key, path) not in unfetched]
    weights = [(key, path) for key, path in job.model_paths() if key[-1] == "weights"]
    lines, missing_paths = list[str](), list[str]()
    for key, path in (*data, *weights):
        obstacle = "" if is_remote(path) else find_obstacle(job.resolve(path))
        if obstacle:
            lines.append(f"{job.locate_key(key)}: {format_value(path)} {obstacle}")
            missing_paths.append(path)
    if lines:
        folders = dict.fromkeys((str(job.folder.resolve()), str(Path.cwd())))
        possible = f"a path relative to {' or to '.join(folders)}"
        raise DataError("\n".join(lines), possible, _advise_on_paths(job, missing_paths))


def _advise_on_paths(job: Job, paths: Sequence[str]) -> str:
    """Return the advice for paths that cannot be read: the most specific that fits."""
    roots = (job.folder, Path.cwd())
    if (job.folder / "samples" / f"{job.name}.py").exists():
        return f"make samples ARGS={job.name}"
    similar = " ".join(filter(None, (suggest_nearest_path(roots, path) for path in paths)))
    if similar:
        return similar
    if all(describe_special_file(job.resolve(path)) for path in paths):
        return TAKE_FILE
    return f"{CHECK_PATH}; a container can access only the project and mounted folders"


def schema() -> dict[str, Any]:
    """Return the JSON schema of the spec."""
    kinds = [_add_optimization_types(kind) for kind in JOBS.values()]
    for kind in kinds:
        # Classes whose validators are not built yet would each get definitions of their own, which the union cannot join.
        kind.model_rebuild(force=True)
    union: Any = Annotated[Union[tuple(kinds)], Field(discriminator="task")] if len(kinds) > 1 else kinds[0]  # noqa: UP007
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Drivetrain job",
        **TypeAdapter(union).json_schema(),
    }
