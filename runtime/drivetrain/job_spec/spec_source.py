"""Describes where a spec comes from, so that a child process loads the same job even if the user's files change.

It also loads the stored job of a run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from drivetrain.data.custom import user_code
from drivetrain.job import Job
from drivetrain.job.custom import CustomData, list_user_functions
from drivetrain.job_spec.load_job import load, read_content
from drivetrain.job_spec.stored_spec import COPY, WRITTEN_FILE, compare_stored_spec, load_stored_spec, locate_written
from drivetrain.system.console import say
from drivetrain.system.files import blame_storage, to_json
from drivetrain.system.run_files import JOB_FILE
from drivetrain.system.run_records import RunState

CODE = "code"
"""Name of the folder with the user's code, in the folder with a job's copies."""
COPY_VARIABLE = "DRIVETRAIN_JOB_COPY"
"""Environment variable with the copy that `drivetrain train` trains from, set by commands that train several runs."""


@dataclass(frozen=True)
class SpecSource:
    """A job file, and the settings that override it."""

    spec: Path
    assignments: Sequence[str] = ()
    """`key.path=value` texts, as for `--set`."""
    measured: Mapping[str, int] = field(default_factory=dict)
    """Measured numbers by key of `train:`, in place of `batch_size: auto` and for `within`."""
    folder: Path | None = None
    """Folder from which relative paths start; None for the folder of the file."""
    code: Mapping[str, str] | None = None
    """SHA-256 by name of the only files of user code that may run; None allows all files in the folder of the spec."""
    is_child: bool = False
    """Whether the parent process has already downloaded all remote data; this process then reads the same copies."""
    copy: Path | None = None
    """Folder with copies of the job file and the user's code, which are read instead; None if there is none."""
    content: bytes | None = None
    """Content of the job file; None until it is read."""

    def load(self) -> Job:
        """Read and check the spec, and download its data from the Hugging Face hub, stores and the web.

        A job that is read from the copy in a run folder keeps the defaults that the run began with.

        Raises:
            SpecError: with all problems.
            DataError: if a path in the spec does not exist.
        """
        job = load(
            self.spec,
            self.assignments,
            folder=self.folder,
            measured=self.measured,
            locate=_use_fetched if self.is_child else fetch,
            content=self.read().content,
            is_copied=self.copy is not None,
        )
        if self.code is not None or self.copy is not None:
            user_code.open_code(job.folder, self.code, self.copy and self.copy / CODE)
        return compare_stored_spec(self.copy.parent, job).job if self.copy else job

    def read(self) -> SpecSource:
        """Read the job file unless its content is already here; returns the source with the content.

        Raises:
            SpecError: if it cannot be read.
        """
        if self.content is not None:
            return self
        with blame_storage(self.spec):
            return replace(self, content=(self.copy / JOB_FILE).read_bytes() if self.copy else read_content(self.spec))

    def read_files(self, job: Job) -> dict[str, bytes]:
        """Read the job file, the user's code, and small files that its arguments name, by their names in a copy.

        Raises:
            SpecError: if one of them cannot be read.
            CheckpointError: if a file of the user's code differs from the one that may run.
        """
        code = user_code.Code(job.folder, self.code, self.copy and self.copy / CODE)
        for key, settings, _ in list_user_functions(job):
            try:
                code.read_with_imports(settings.file)
                if not isinstance(settings, CustomData):  # its arguments name the data, which is not copied
                    code.with_copies(settings.arguments)
            except OSError as error:
                message = f"{settings.file} or a file of its arguments cannot be read: {error}"
                raise job.spec_error((*key, "file"), message, "files that exist", "restore it") from None
        spec = {JOB_FILE: self.read().content or b"", WRITTEN_FILE: to_json(locate_written(job)).encode()}
        return spec | {f"{CODE}/{name}": text for name, text in code.sources.items()}

    def copy_to(self, folder: Path, job: Job) -> SpecSource:
        """Copy the job's files into a folder, replacing older copies; returns the source that reads the copies.

        Raises:
            SpecError: as `read_files`.
            StorageError: if the folder cannot be written.
        """
        files, copy = self.read_files(job), folder / COPY
        with blame_storage(copy), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(copy)
        for name, content in files.items():
            user_code.write_copy(copy, name, content)
        return replace(self, content=files[JOB_FILE], copy=copy)

    def options(self) -> list[str]:
        """List the options that a child process reads with `add_options`, without the path of the spec."""
        # One argument for each assignment, because Linux accepts at most 128 KiB in one argument.
        assignments = list(itertools.chain.from_iterable(("--set", assignment) for assignment in self.assignments))
        settings = {"measured": dict(self.measured), "code": self.code and {**self.code}}
        paths = {"folder": self.folder and str(self.folder), "copy": self.copy and str(self.copy)}
        return [*assignments, "--source", json.dumps(settings | paths)]

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> SpecSource:
        """Return the source that the parent process passes in the options of this process."""
        settings = json.loads(arguments.source)
        paths = {name: Path(settings[name]) for name in ("folder", "copy") if settings.get(name)}
        return cls(arguments.spec, arguments.set, **settings | paths, is_child=True)


def fetch(job: Job) -> Job:
    """Download the remote data of a job that is not in the caches or has changed in a store; returns the located job."""
    from drivetrain.job_spec import located_data

    return located_data.fetch(job, say)


def _use_fetched(job: Job) -> Job:
    """Locate the remote data of a job without asking stores again, so that all processes of a run read one version."""
    from drivetrain.job_spec import located_data

    return located_data.use_cached(job, say)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the path of the spec and the options of `SpecSource.options` to a program's parser."""
    parser.add_argument("spec", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--source", default="{}")


def load_stored_job(run: Path, locate: Callable[[Job], Job] | None) -> Job:
    """Load the job of a run; relative paths start from the folder of the original job file.

    Args:
        run: run folder.
        locate: function that locates remote data, as for `load`.

    Raises:
        CheckpointError: if the stored file cannot be read.
        SpecError: if the stored job is not valid here, for example because another version stored it.
        DataError: if a path in it does not exist.
    """
    load_stored_spec(run)
    return load(run / JOB_FILE, folder=Path(RunState.read(run).source).parent, locate=locate)
