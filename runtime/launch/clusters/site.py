"""The site file: what belongs to a cluster and to no job, such as its partition, its shared folders or its time limit.

It is YAML, checked like a job file: each mistake with line and column.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from runtime.errors import SpecError
from runtime.job.values import Duration, Spec
from runtime.job_spec.validation_errors import problems
from runtime.job_spec.yaml_file import parse

_OURS = (
    *("nodes", "ntasks", "ntasks-per-node", "time", "signal", "requeue", "no-requeue", "no-kill", "kill-on-bad-exit"),
    *("chdir", "output", "error", "open-mode", "job-name"),
)
"""Options of sbatch that the job, the command line or another key of the site file decides."""
_OPTION = re.compile(r"[a-z][a-z0-9-]*")


def _line(text: str) -> str:
    """Check that a text is one line: a line break in a batch script would begin a command."""
    if not text or not text.isprintable():
        raise PydanticCustomError("line", "text on one line")
    return text


def _folder(text: str) -> str:
    """Check an absolute path."""
    if not _line(text).startswith("/"):
        raise PydanticCustomError("folder", "the absolute path of a folder, such as /home")
    return text


def _option(text: str) -> str:
    """Check the long name of an option."""
    if not _OPTION.fullmatch(text):
        raise PydanticCustomError("option", "the long name of an option without dashes before it, such as partition")
    if text in _OURS:
        raise PydanticCustomError(
            "option", "other options than those that --nodes, `time:`, `grace:` or the job decide"
        )
    return text


Line = Annotated[str, AfterValidator(_line)]
Folder = Annotated[str, AfterValidator(_folder)]
OptionName = Annotated[str, AfterValidator(_option)]


class SlurmSite(Spec):
    """A cluster with Slurm."""

    shared: list[Folder] = Field([], description="folders that all nodes see under the same path")
    time: Duration | None = Field(None, description="time limit of a job; that of the partition if absent")
    grace: Duration = Field("2m", description="time before the limit at which training is told to save and stop")
    options: dict[OptionName, Line | int | bool] = Field({}, description="other options of sbatch, by their long names")
    srun: list[Line] = Field([], description="other options of srun, such as --container-image=...")
    setup: list[Line] = Field([], description="shell commands before training, such as module load ...")
    command: list[Line] | None = Field(
        None, min_length=1, description="the words that start drivetrain on a node; this Python environment if absent"
    )

    @property
    def given(self) -> dict[str, str | int]:
        """The options of sbatch that are set."""
        return {name: value for name, value in self.options.items() if value is not False}


class Site(Spec):
    """What belongs to a site, by engine."""

    slurm: SlurmSite = Field(SlurmSite(), description="for --on slurm")


def load(path: Path | None) -> tuple[Site, str]:
    """The site, and how messages name it.

    Raises:
        SpecError: if the file cannot be read, with all mistakes in it.
    """
    if path is None:
        return Site(), "a site file (--site FILE)"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SpecError(
            f"--site {path}: {error.strerror or error}",
            f"a YAML file with the keys {', '.join(Site.model_fields)}",
            "docs/clusters.md shows one for each engine",
        ) from None
    document = parse(text, str(path))
    try:
        return Site.model_validate(document.data), str(path)
    except ValidationError as error:
        raise SpecError(problems(error, Site, document)) from None


def flag(name: str, value: Any) -> str:
    """An option of the command line of Slurm, as one word."""
    return f"--{name}" if value is True else f"--{name}={value}"
