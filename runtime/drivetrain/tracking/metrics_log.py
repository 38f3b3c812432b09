"""The metrics of a run: metrics.jsonl (losses and metrics by step, exact), and TensorBoard event files beside it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from drivetrain.system.console import say
from drivetrain.system.files import blame_storage
from drivetrain.system.run_files import METRICS_FILE, RunFiles
from drivetrain.tracking.tensorboard import TensorBoardWriter

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
        """Open the files; on resume, rows after step `after` and evaluations at it from `epoch` on are removed first.

        `report` reports it if TensorBoard's files cannot be written.

        Raises:
            StorageError: if they cannot be opened.
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

    def remove_rows_after(self, after: int, epoch: int) -> None:
        """Remove rows after step `after`, and evaluations at it from `epoch` on."""
        self.flush()
        os.close(self.handle)
        rows = [
            row
            for row in self.files.read_rows(METRICS_FILE)
            # Only rows of steps have a learning rate.
            if row["step"] < after or (row["step"] == after and (row["epoch"] < epoch or "lr" in row))
        ]
        self.files.write_text(METRICS_FILE, "".join(json.dumps(row) + "\n" for row in rows))
        self._open()

    def write(self, step: int, epoch: int, values: Mapping[str, float], *, batch: str = "") -> None:
        """Write one row. NaN and infinity are written as such: a bad number is never hidden.

        Args:
            step: from 1.
            epoch: from 0.
            values: by name.
            batch: the digest of the samples of a step, which no curve shows.
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
        """Write what is buffered, and stop the TensorBoard writer."""
        try:
            self.flush()
        finally:
            os.close(self.handle)
            self.board.close()
