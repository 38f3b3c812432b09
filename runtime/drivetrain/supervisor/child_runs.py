"""Trains many runs of one job, one after the other, each in a child process `drivetrain train --json`.

All runs are trained from one copy of the job file and the user's code, so edits in between do not change later runs. What
the first run measures applies to all of them: runs with different batch sizes or plans cannot be compared.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from drivetrain.job import Job
from drivetrain.job_spec.spec_source import COPY_VARIABLE, SpecSource
from drivetrain.job_spec.stored_spec import store_spec
from drivetrain.plan import plan_table
from drivetrain.report import baseline_results
from drivetrain.system import child_process, signals
from drivetrain.system.files import parse_json
from drivetrain.system.run_files import PLAN_FILE
from drivetrain.system.signals import SignalForwarder
from drivetrain.tuning import batch_size

PROGRAM = "drivetrain"
"""Program of a child; tests start another program instead."""


@dataclass(frozen=True)
class ChildRuns:
    """Trains runs of one job in one folder."""

    source: SpecSource
    """Job file, with the copy that all runs are trained from."""
    job: Job
    parent: Path
    """Folder of the runs."""
    forward: SignalForwarder
    runs: dict[str, Path] = field(default_factory=dict)
    """Runs so far by name, the first one first."""

    @property
    def first(self) -> Path | None:
        """The first run, whose plan is printed completely; None if there is none yet."""
        return next(iter(self.runs.values()), None)

    def assign(self, changes: Sequence[str]) -> tuple[Job, list[str]]:
        """Load the job of a run with these changes; returns it and all its assignments, including earlier measurements."""
        measured = batch_size.pin_measured(self.job, self.runs.values())
        assignments = [*self.source.assignments, *measured, *changes]
        return replace(self.source, assignments=assignments).load(), assignments

    def train(
        self,
        assignments: Sequence[str],
        *options: str,
        baselines: bool = False,
        wait: Callable[[subprocess.Popen[bytes]], int] = subprocess.Popen.wait,
    ) -> tuple[int, Mapping[str, Any]]:
        """Train or resume a run; returns its exit code and the output of `train --json`.

        Args:
            assignments: values that override the spec.
            options: further options of `drivetrain train`.
            baselines: whether to fit simple models, which would be the same for all runs.
            wait: function that waits for the child.
        """
        command = [sys.executable, "-m", PROGRAM, "train", child_process.format_path_argument(self.source.spec)]
        for assignment in assignments:
            command += ["--set", assignment]
        command += ["--runs", str(self.parent), "--json", *options]
        environment = {COPY_VARIABLE: str(self.source.copy)}
        if not baselines:
            environment[baseline_results.SWITCH] = "off"
        if self.first:
            environment[plan_table.SHOWN_PLAN] = str(self.first / PLAN_FILE)
        with tempfile.TemporaryFile() as output:
            code = child_process.run_child(command, environment, self.forward, wait=wait, output=output.fileno())
            output.seek(0)
            # A killed child has printed nothing.
            return code, parse_json(output.read() or b"{}", dict)


@contextlib.contextmanager
def open_child_runs(source: SpecSource, job: Job, parent: Path) -> Iterator[ChildRuns]:
    """Open child runs of a copy of the job with its defaults; signals are forwarded to them within the block."""
    with tempfile.TemporaryDirectory(prefix="runs-") as scratch, signals.forward_signals() as forward:
        store_spec(Path(scratch), job)
        yield ChildRuns(source.copy_to(Path(scratch), job), job, parent, forward)
