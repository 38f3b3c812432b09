"""The metrics of a run: metrics.jsonl (exact losses and metrics by step), and TensorBoard event files."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drivetrain.system.console import say
from drivetrain.system.files import blame_storage, parse_row
from drivetrain.system.run_files import METRICS_FILE, RunFiles, read_lines
from drivetrain.tracking.event_log import EventLog
from drivetrain.tracking.tensorboard import TensorBoardWriter

DAMAGED_FILE = "metrics-damaged-{}.jsonl"
"""Name of a copy of metrics.jsonl with its unreadable lines."""
MAX_NAMED_LINES = 10
FLUSH_SECONDS = 1.0
"""Seconds between two flushes; a write per step would take longer than the step of a small network."""


class MetricsLog:
    """Writes one row per step and per evaluation.

    Rows are buffered until they are completely on disk: a full disk truncates no row, and the rows are written once
    there is space again.
    """

    def __init__(
        self, folder: Path, *, after: int | None = None, epoch: int = 0, report: Callable[[str], None] = say
    ) -> None:
        """Open the files; on resume, remove rows after step `after`, and evaluations at it from `epoch` on.

        `report` takes a line if TensorBoard's files cannot be written. Raises StorageError if metrics.jsonl cannot be opened.
        """
        self.files = RunFiles(folder)
        self.pending: list[str] = []
        self.board = TensorBoardWriter(folder / "tensorboard", after, report)
        self.problem: str | None = None
        self.flushed = time.monotonic()
        self._open()
        if after is not None:
            self.remove_rows_after(after, epoch)

    def _open(self) -> None:
        with blame_storage(self.files.path / METRICS_FILE):
            self.handle = self.files.open_handle(METRICS_FILE, os.O_WRONLY | os.O_CREAT)
            self.size = os.lseek(self.handle, 0, os.SEEK_END)

    def remove_rows_after(self, last_step: int, epoch: int) -> None:
        """Remove rows after step `last_step`, and evaluations at it from `epoch` on."""
        self.flush()
        os.close(self.handle)
        rows, damaged = self._read_rows()
        if damaged:
            self._save_damaged(damaged, last_step)
        lines = [
            json.dumps(row) + "\n"
            for row in rows
            # Only rows of steps have a learning rate.
            if row["step"] < last_step or (row["step"] == last_step and (row["epoch"] < epoch or "lr" in row))
        ]
        self.files.write_text(METRICS_FILE, "".join(lines))
        self._open()

    def _read_rows(self) -> tuple[list[dict[str, Any]], list[int]]:
        """Read the rows, and the numbers of unreadable lines, except a last line that a kill cut off."""
        rows, damaged = [], []
        with self.files.open(METRICS_FILE, "rb") as file:
            for number, line in enumerate(read_lines(file), start=1):
                row = parse_row(line) or {}
                if all(type(row.get(key)) is int for key in ("step", "epoch")):
                    rows.append(row)
                elif line.endswith(b"\n"):
                    damaged.append(number)
        return rows, damaged

    def _save_damaged(self, lines: list[int], step: int) -> None:
        """Copy the file before its unreadable lines are removed, and report it."""
        copies = map(DAMAGED_FILE.format, itertools.count(1))
        copy = next(name for name in copies if not self.files.is_file(name))
        with (
            blame_storage(self.files.path / copy),
            self.files.open(METRICS_FILE, "rb") as damaged_file,
            self.files.open(copy, "xb") as file,
        ):
            shutil.copyfileobj(damaged_file, file)
        names, unnamed_count = ", ".join(map(str, lines[:MAX_NAMED_LINES])), len(lines) - MAX_NAMED_LINES
        names = f"line{'s' * (len(lines) > 1)} {names}" + (f" and {unnamed_count} more" if unnamed_count > 0 else "")
        text = f"{METRICS_FILE}: {names} cannot be read and are missing in the curves; the file as it was is {copy}"
        EventLog(self.files.run).add("metrics", text, step)

    def write(self, step: int, epoch: int, values: Mapping[str, float], *, batch: str = "") -> None:
        """Write one row for a step (from 1) of an epoch (from 0). NaN and infinity are written: a bad number is never hidden.

        `batch` is the digest of the samples of the step, which no curve shows.
        """
        row = {"step": step, "epoch": epoch, **values} | ({"batch": batch} if batch else {})
        self.pending.append(json.dumps(row) + "\n")
        self.board.put(step, values)
        if time.monotonic() - self.flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self, *, sync: bool = False) -> None:
        """Write all rows to the operating system, or with `sync` to the disk; on failure they stay buffered, and
        `problem` says why.
        """
        self.flushed = time.monotonic()
        data = "".join(self.pending).encode()
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self.handle, data[written:], self.size + written)
            if sync:
                os.fsync(self.handle)
        except OSError as error:
            self.problem = error.strerror
            with contextlib.suppress(OSError):
                os.ftruncate(self.handle, self.size)
            return
        self.size += len(data)
        self.pending.clear()
        self.problem = None

    def close(self) -> None:
        """Write the buffered rows, and stop the TensorBoard writer."""
        try:
            self.flush()
        finally:
            os.close(self.handle)
            self.board.close()
