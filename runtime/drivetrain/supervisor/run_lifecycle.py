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
from drivetrain.supervisor import extended_run, provenance
from drivetrain.supervisor.run_folder import RunFolder
from drivetrain.system import child_process, run_files
from drivetrain.system.console import say
from drivetrain.system.fault_points import fault_point
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import RunState
from drivetrain.tracking.run_tracker import RunTracker, start_tracker

STATUS = {0: "done", Stopped.exit_code: "stopped"}
"""By exit code; every other one has failed."""
STANDARD_ERROR = 2
"""File of the messages of this process."""


class RunLifecycle:
    """The only writer of a run's state.json, and the starter of what tracks and reports the run."""

    def __init__(
        self,
        run: RunFolder,
        source: str,
        assignments: Sequence[str] = (),
        requested: Mapping[str, object] | None = None,
    ) -> None:
        """
        Args:
            source: the spec, or the program that trains.
            assignments: values that override the spec.
            requested: what a resumed run must request again, for state.json.
        """
        before = RunState.read(run.path)
        self.run = run
        self.tracker: RunTracker | None = None
        self.state: dict[str, Any] = {
            "status": "running",
            "exit_code": None,
            "source": source,
            "set": list(assignments),
            "started": _format(before.started),
            "ended": None,
            "attempts": before.attempts + 1,
            "key": before.key if re.fullmatch("[0-9a-f]{32}", before.key) else uuid.uuid4().hex,
            "commits": provenance.add_commit(before.commits, source, run.path),
            **(requested or {}),
        }

    def begin(self, machine: Hardware, track: Track | None) -> None:
        """Record that an attempt starts on this machine, and start to copy it to the tracking server of the job, if any."""
        RunFiles(self.run.path).write_json(run_files.HARDWARE_FILE, machine.to_json())
        RunFiles(self.run.path).write_json(run_files.STATE_FILE, self.state)
        how = f"continues {self.run.extends}" if self.run.extends else "resumes" if self.run.resumes else "starts"
        say(f"run {self.run.path} {how}")
        self.tracker = start_tracker(self.run.path, track)

    def record_end(self, code: int) -> None:
        """Record that the attempt has ended with this exit code."""
        self.state |= {"status": STATUS.get(code, "failed"), "exit_code": code, "ended": _format()}
        RunFiles(self.run.path).write_json(run_files.STATE_FILE, self.state)
        if code == 0:
            provenance.write(self.run.path, self.state["commits"])

    def end(self, code: int) -> bool:
        """Record that the trainer has ended with this exit code; returns whether there still is a run.

        Nothing was trained in a copy that the trainer refused, so it must not stand in the way of the next `extend`.
        """
        self.record_end(code)
        is_refused = extended_run.is_refused(self.run, code)
        if is_refused:
            if self.tracker:
                self.tracker.cancel()
                self.tracker = None
            extended_run.discard(self.run)
        return not is_refused

    def finish_tracking(self) -> None:
        """Let the tracker send the rest, which has the report, too, if it was written before."""
        if self.tracker:
            self.tracker.finish()

    def saved(self) -> str:
        """Describe the last save of a run that ended at once, and where the same command continues."""
        if checkpoints := run_files.list_checkpoints(self.run.path / run_files.CHECKPOINTS):
            return f"saved up to step {run_files.parse_suffix(checkpoints[-1]):,}, where the same command resumes"
        return "nothing was saved yet; the same command begins at the first step"

    def report(self, seconds: float | None = None, *, output: int | None = None) -> None:
        """Write the report if anything was trained; in a separate process, because it imports large libraries.

        Args:
            seconds: at most so long; None for no limit.
            output: what the process prints goes to this file; None for ours.
        """
        fault_point("report")
        run = self.run.path
        if not (run / run_files.METRICS_FILE).exists():
            return
        child = child_process.start_child(
            [sys.executable, "-m", "drivetrain.report", str(run)],
            child_process.build_environment({}),
            output=output,
            # A program that hides what is printed shows errors all the same; its sys.stderr may be no file.
            errors=None if output is None else STANDARD_ERROR,
            # Between fork and exec no code runs in a program that is not ours, whose threads may hold any lock.
            outlives_us=output is not None,
        )
        code = child_process.wait_or_kill(child, seconds)
        reason = f"its process ended with exit code {code}" if code else ""
        if code is None:
            reason = f"it took more than the {seconds:g} s that a stopped run takes for it"
        hint = f"`drivetrain report {run}` writes it"
        say(f"warning: the report was not written: {reason}; {hint}" if reason else f"report: {run}/report.html")


def _format(moment: datetime | None = None) -> str:
    """Format a moment, or now, as a run folder has it."""
    return (moment or datetime.now()).astimezone(UTC).isoformat(timespec="seconds")
