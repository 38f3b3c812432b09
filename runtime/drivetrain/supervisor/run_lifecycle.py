"""Records the lifecycle of a run in its folder: hardware and state when it starts, state and report when it ends."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from drivetrain.errors import Stopped
from drivetrain.hardware.facts import Hardware
from drivetrain.job.track import Track
from drivetrain.supervisor import provenance
from drivetrain.supervisor.run_folder import RunFolder
from drivetrain.system import child_process, run_files
from drivetrain.system.console import say
from drivetrain.system.fault_points import fault_point
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import RunState
from drivetrain.tracking.run_tracker import RunTracker, start_tracker

STATUS = {0: "done", Stopped.exit_code: "stopped"}
"""Status by exit code; all other codes mean failed."""
STANDARD_ERROR = 2
"""File descriptor for the messages of this process."""


class RunLifecycle:
    """The only writer of a run's state.json, which also starts the tracking and the report of the run."""

    def __init__(
        self,
        run: RunFolder,
        source: str,
        assignments: Sequence[str] = (),
        requested: Mapping[str, object] | None = None,
    ) -> None:
        """
        Args:
            run: opened run folder.
            source: path of the spec, or of the program that trains.
            assignments: values that override the spec.
            requested: values for state.json that a resumed run must request again.
        """
        last_state = RunState.read(run.path)
        self.run = run
        self.tracker: RunTracker | None = None
        self.state: dict[str, Any] = {
            "status": "running",
            "exit_code": None,
            "source": source,
            "set": list(assignments),
            "started": _format(last_state.started),
            "ended": None,
            "attempts": last_state.attempts + 1,
            "key": last_state.key if re.fullmatch("[0-9a-f]{32}", last_state.key) else uuid.uuid4().hex,
            # Read now, because commits that are made during the training are not part of it.
            "commits": provenance.add_commit(last_state.commits, source),
            **(requested or {}),
        }

    def begin(self, machine: Hardware, track: Track | None) -> None:
        """Record that an attempt starts on this machine, and start its copy to the job's tracking server, if any."""
        RunFiles(self.run.path).write_json(run_files.HARDWARE_FILE, machine.to_json())
        RunFiles(self.run.path).write_json(run_files.STATE_FILE, self.state)
        if self.run.extends:
            say(f"run {self.run.path} continues {self.run.extends}")
        else:
            say(f"run {self.run.path} {'resumes' if self.run.resumes else 'starts'}")
        self.tracker = start_tracker(self.run.path, track)

    def end(self, code: int) -> None:
        """Record that the attempt has ended with this exit code."""
        self.state |= {"status": STATUS.get(code, "failed"), "exit_code": code, "ended": _format()}
        RunFiles(self.run.path).write_json(run_files.STATE_FILE, self.state)
        if code == 0:
            # Only after the state is written, because large weights take long to hash.
            try:
                self.state["made_from"] = provenance.describe_inputs(self.run.path)
            except OSError as error:
                say(f"warning: {self.run.path} does not record the origin of its model: {error}")
            RunFiles(self.run.path).write_json(run_files.STATE_FILE, self.state)

    def finish_tracking(self) -> None:
        """Let the tracker send all remaining records, including the report if it is already written."""
        if self.tracker:
            self.tracker.finish()

    def describe_progress(self) -> str:
        """Describe the last checkpoint of a run that ended at once, and the step where the same command continues."""
        checkpoints = run_files.list_checkpoints(self.run.path / run_files.CHECKPOINTS)
        if checkpoints:
            return f"saved up to step {run_files.parse_suffix(checkpoints[-1]):,}, where the same command resumes"
        return "nothing was saved yet; the same command begins at the first step"

    def report(self, seconds: float | None = None, *, output: int | None = None) -> None:
        """Write the report if anything was trained, in a separate process because it imports large libraries.

        Args:
            seconds: time limit; None for no limit.
            output: file for the output of the process; None for the output of this process.
        """
        fault_point("report")
        run = self.run.path
        if not (run / run_files.METRICS_FILE).exists():
            return
        child = child_process.start_child(
            [sys.executable, "-m", "drivetrain.report", str(run)],
            child_process.build_environment({}),
            output=output,
            # A program that hides its output still shows errors; its sys.stderr may not be a file.
            errors=None if output is None else STANDARD_ERROR,
            # In a user's program no code may run between fork and exec, because its threads may hold any lock.
            outlives_us=output is not None,
        )
        code = child_process.wait_or_kill(child, seconds)
        if code == 0:
            say(f"report: {run}/report.html")
            return
        reason = f"its process ended with exit code {code}"
        if code is None:
            reason = f"it took more than {seconds:g} s, the limit for a stopped run"
        say(f"warning: the report was not written: {reason}; `drivetrain report {run}` writes it")


def _format(moment: datetime | None = None) -> str:
    """Format a moment, by default the current one, as stored in run folders."""
    return (moment or datetime.now()).astimezone(UTC).isoformat(timespec="seconds")
