"""Shows the progress of a pass over samples on stderr: a line that updates on a terminal, single lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from runtime.tracking.live.time_left import clock_time

LINE_EVERY, PAINT_EVERY = 5.0, 0.5
"""Seconds between two lines in a log, and between updates on a terminal. A shorter pass shows nothing."""

Ids = TypeVar("Ids", bound=Sized)
Rest = TypeVar("Rest")


def told(batches: Iterable[tuple[Ids, Rest]], total: int, doing: str) -> Iterator[tuple[Ids, Rest]]:
    """The batches, with progress shown meanwhile.

    Args:
        batches: (ids, anything); the number of ids is the number of samples.
        total: samples of the whole pass.
        doing: name of the pass, such as `evaluate`.
    """
    moves = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    start = said = time.monotonic()
    done, every, width = 0, PAINT_EVERY if moves else LINE_EVERY, 0
    try:
        for batch in batches:
            yield batch
            done += len(batch[0])
            now = time.monotonic()
            if now - said < every or done >= total:
                continue
            said = now
            text = f"{doing}: {done:,} of {total:,} samples  {clock_time((total - done) * (now - start) / done)} left"
            width = max(width, len(text))
            print(f"\r{text:<{width}}" if moves else text, end="" if moves else "\n", file=sys.stderr, flush=True)
    finally:
        if moves and width:
            print(f"\r{'':<{width}}\r", end="", file=sys.stderr, flush=True)
