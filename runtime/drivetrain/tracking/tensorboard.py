"""Writes TensorBoard event files in a thread, so that they never delay a step or end a run.

TensorBoard's writer of records is imported in that thread: it takes longer than fifty steps of a small network. Its writer of
files has one more thread, which prints a traceback where the disk is full.
"""

from __future__ import annotations

import io
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image

GATHER_SECONDS = 0.5
"""Seconds over which events are collected; each wake-up of the thread takes the CPU and the GIL from a step."""


Value = float | Callable[[], Image.Image]
"""A scalar, or a picture that is drawn when it is written."""
_QueuedValues = tuple[int, float, Mapping[str, Value]]


class TensorBoardWriter:
    """Writes queued events.

    Args:
        folder: of the event files.
        after: the step that a resumed run continues from; later events of earlier attempts are hidden.
        report: called with a problem, once.
    """

    def __init__(self, folder: Path, after: int | None, report: Callable[[str], None]) -> None:
        self.folder, self.after, self.report = folder, after, report
        self.queue: queue.SimpleQueue[_QueuedValues | None] = queue.SimpleQueue()
        self.ended = False
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._write_until_closed, name="tensorboard", daemon=True)
        self.thread.start()

    def put(self, step: int, values: Mapping[str, Value]) -> None:
        """Add the values of a step, by tag, to the queue."""
        if not self.ended:
            self.queue.put((step, time.time(), dict(values)))

    def close(self) -> None:
        """Write the queued values, and stop."""
        self.queue.put(None)
        self.closing.set()
        self.thread.join(timeout=10)

    def _write_until_closed(self) -> None:
        # The first step should not wait for the import.
        values = self.queue.get()
        if values is None:
            return
        try:
            self._write(values)
        except Exception as error:
            # TensorBoard is only a view; metrics.jsonl holds every number.
            self.ended = True
            self.report(f"TensorBoard logging has stopped, the training continues: {error}")

    def _write(self, queued: _QueuedValues | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.folder.mkdir(exist_ok=True)  # and no run folder that was deleted
        events = [Event(wall_time=time.time(), file_version="brain.Event:2")]
        if self.after is not None:
            events.append(Event(step=self.after + 1, session_log=SessionLog(status=SessionLog.START)))
        # The reader takes the files of a run in the order of their names.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        with (self.folder / name).open("wb") as file:
            writer = RecordWriter(file)
            for event in events:
                writer.write(event.SerializeToString())
            while queued is not None:
                step, moment, values = queued
                rows = [_build_value(tag, value) for tag, value in values.items()]
                event = Event(step=step, wall_time=moment, summary=Summary(value=rows))
                writer.write(event.SerializeToString())
                if self.queue.empty():
                    file.flush()
                    self.closing.wait(GATHER_SECONDS)
                queued = self.queue.get()


def _build_value(tag: str, value: Value) -> object:
    from tensorboard.compat.proto.summary_pb2 import Summary

    if callable(value):
        image, data = value(), io.BytesIO()
        image.save(data, "png")
        encoded = data.getvalue()
        picture = Summary.Image(height=image.height, width=image.width, colorspace=3, encoded_image_string=encoded)
        return Summary.Value(tag=tag, image=picture)
    return Summary.Value(tag=tag, simple_value=value)
