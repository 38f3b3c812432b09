"""The run's records: metrics.jsonl (losses and metrics by step, exact) and TensorBoard event files beside it."""

from __future__ import annotations

import json
import queue
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.files import read_lines, write_text

FLUSH_EVERY = 1.0
"""Seconds between two flushes: a write per step would cost more than the step of a small network."""


class Metrics:
    """Writes one row per step and per evaluation."""

    def __init__(self, folder: Path, *, after: int | None = None, epoch: int = 0) -> None:
        """Open the records; on resume, rows beyond step `after` or evaluations from `epoch` on are cut off first."""
        self.path = folder / "metrics.jsonl"
        if after is not None:
            self._cut(after, epoch)
        self.file = self.path.open("a", encoding="utf-8")
        self.board = Board(folder / "tensorboard", after)
        self.flushed = time.monotonic()

    def _cut(self, after: int, epoch: int) -> None:
        rows = [row for row in read_lines(self.path)
                if row["step"] <= after and (row["epoch"] < epoch or "lr" in row)]  # fmt: skip
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """One row. JSON's NaN and Infinity stand for themselves: a bad number is never hidden."""
        self.file.write(json.dumps({"step": step, "epoch": epoch, **values}) + "\n")
        self.board.put(step, values)
        if time.monotonic() - self.flushed > FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self.file.flush()
        self.flushed = time.monotonic()

    def close(self) -> None:
        """Write the rest and stop the writer."""
        self.file.close()
        self.board.close()


class Board:
    """TensorBoard scalars from a thread of their own: importing and writing never hold up a step or end a run."""

    def __init__(self, folder: Path, after: int | None) -> None:
        self.folder, self.after = folder, after
        self.queue: queue.SimpleQueue[tuple[int, float, dict[str, float]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="tensorboard", daemon=True)
        self.thread.start()

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Queue scalars."""
        self.queue.put((step, time.time(), dict(values)))

    def close(self) -> None:
        """Write what is queued."""
        self.queue.put(None)
        self.thread.join(timeout=10)

    def _work(self) -> None:
        # The first step should not wait for this import.
        first = self.queue.get()
        if first is None:
            return
        try:
            self._write(first)
        except Exception as error:
            # TensorBoard is a picture of the run, not the run: metrics.jsonl holds everything.
            warnings.warn(f"TensorBoard files end here: {error}", stacklevel=1)

    def _write(self, item: tuple[int, float, dict[str, float]] | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer: Any = EventFileWriter(str(self.folder))
        if self.after is not None:
            start = SessionLog(status=SessionLog.START)
            writer.add_event(Event(step=self.after + 1, wall_time=time.time(), session_log=start))
        while item is not None:
            step, moment, values = item
            rows = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            writer.add_event(Event(step=step, wall_time=moment, summary=Summary(value=rows)))
            item = self.queue.get()
        writer.close()
