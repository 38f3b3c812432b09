"""Reads a job file and `--set` values as a document that is yet to be checked."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.job import Document
from drivetrain.job.formatting import format_value
from drivetrain.job_spec.yaml_file import read, set_value
from drivetrain.job_spec.yaml_syntax import MAX_BYTES


def read_spec(path: Path, assignments: Sequence[str], content: bytes | None = None) -> Document:
    """The document, with the mistakes in it.

    Args:
        assignments: `key.path=value` texts, applied over it.
        content: of the file as it was read before; None to read it now.

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
    """Remove the length in the file if the command line has a time, and the time if it has a length: one of both is possible."""
    train = document.data.get("train")
    if not isinstance(train, dict):
        return
    written = {key: value for key, value in train.items() if value is not None}
    lengths = written.keys() & {"epochs", "steps", "within"}
    set_keys = {key for key in lengths if document.place(("train", key)).startswith("--set ")}
    is_time = {key == "within" for key in set_keys}
    for key in sorted(lengths - set_keys) if len(is_time) == 1 else ():
        if (key == "within") not in is_time:
            setting = ", ".join(f"train.{name}: {format_value(written[name])}" for name in sorted(set_keys))
            document.replaced.append(f"--set: {setting} takes the place of train.{key}: {format_value(written[key])}")
            del train[key], document.places["train", key]


def read_content(path: Path) -> bytes:
    """The content of a job file; raises SpecError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(
            f"{path}: {error.strerror or error}",
            "a job file in YAML",
            _nearest_job(path) or "see the examples in jobs/, or draft one: `drivetrain init DATA`",
        ) from None


def _nearest_job(path: Path) -> str:
    """`did you mean "x"?` for the job file whose name is most similar, in the same folder or in jobs/."""
    for folder in dict.fromkeys((path.parent, Path("jobs"))):
        with contextlib.suppress(OSError):
            files = [file for file in sorted(folder.iterdir()) if file.suffix in (".yaml", ".yml") and file.is_file()]
            stems = {file.stem: file for file in files}
            for stem in difflib.get_close_matches(path.stem, stems, n=1, cutoff=0.75):
                return f'did you mean "{stems[stem]}"?'
    return ""
