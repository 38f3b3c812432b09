"""Where a spec comes from, so that a child process can load the same job again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.data.custom import user_code
from runtime.job import Job
from runtime.job_spec.load import load
from runtime.system.console import say
from runtime.system.files import read_json


@dataclass(frozen=True)
class SpecSource:
    """A job file, and what goes over it."""

    spec: Path
    assignments: Sequence[str] = ()
    """`key.path=value`, as for `--set`."""
    batch_size: int | None = None
    """The measured number in place of `train.batch_size: auto`; None if there is none."""
    folder: Path | None = None
    """Where relative paths start; the folder of the file if None."""
    code: Mapping[str, str] | None = None
    """SHA-256 by name of the only files of user code that may run; None allows those in the folder of the spec."""
    is_child: bool = False
    """Whether the parent of this process has downloaded what the job names; it is then read as it was."""

    def load(self) -> Job:
        """Read and check the spec, and download what it names on the Hugging Face hub, in stores and on the web.

        Raises:
            SpecError: with all problems.
            DataError: if a path in the spec does not exist.
        """
        job = load(
            self.spec,
            self.assignments,
            folder=self.folder,
            batch_size=self.batch_size,
            locate=_at_hand if self.is_child else fetched,
        )
        if self.code is not None:
            user_code.at(job.folder, self.code)
        return job

    def options(self) -> list[str]:
        """The options that a child process reads with `add_options`; the path of the spec is an argument before."""
        words = [word for assignment in self.assignments for word in ("--set", assignment)]
        words += [] if self.batch_size is None else ["--batch-size", str(self.batch_size)]
        words += [] if self.folder is None else ["--paths-from", str(self.folder)]
        return words if self.code is None else [*words, "--code", json.dumps(dict(self.code))]

    @classmethod
    def from_arguments(cls, given: argparse.Namespace) -> SpecSource:
        """The source that the parent of this process has passed on."""
        return cls(given.spec, given.set, given.batch_size, given.paths_from, given.code, is_child=True)


def original_folder(run: Path) -> Path:
    """Where relative paths of a run's job.yaml start, as the run folder says; what lies there may be anybody's."""
    state = read_json(run / "state.json")
    source = state.get("source") if isinstance(state, dict) else None
    return Path(source if isinstance(source, str) else "").parent


def fetched(job: Job) -> Job:
    """The job with what it names elsewhere; downloaded if it is not in the caches, or has changed in a store."""
    return _located(job, ask=True)


def _at_hand(job: Job) -> Job:
    """The same without asking a store again: all processes of a run read one version."""
    return _located(job, ask=False)


def _located(job: Job, *, ask: bool) -> Job:
    from runtime.job_spec import hub_data, stored_data

    return stored_data.locate(hub_data.locate(job, say)[0], say if ask else None)[0]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let a program take the spec and what `SpecSource.options` adds."""
    parser.add_argument("spec", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--batch-size", type=int, default=None)
    parser.add_argument("--paths-from", type=Path, default=None)
    parser.add_argument("--code", type=json.loads, default=None)
