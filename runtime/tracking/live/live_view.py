"""The live view: a thread that paints a run from its folder during the training, at a limited rate."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

from runtime.system.console import console, say
from runtime.tracking.live.dashboard import screen
from runtime.tracking.live.run_reader import RunReader
from runtime.tracking.live.terminal_painter import Painter

LINE_EVERY = 5.0
"""Seconds between two lines."""
PAINT_EVERY = 1.0
"""Seconds between two refreshes, the interval at which sensors are read."""
PAINT_SHARE, PAINT_LEAST = 0.005, 10.0
"""Largest share of a CPU that painting may use, and the longest interval in seconds that follows from it."""


class LiveView:
    """A thread that reads a run folder and paints it until closed."""

    def __init__(self, folder: Path) -> None:
        self.follower, self.painter = RunReader(folder), Painter(console())
        self.spent = 0.0
        """CPU seconds of the painting thread so far."""
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._work, name="live view", daemon=True)
        self.painter.start()
        self.thread.start()

    def _work(self) -> None:
        try:
            rest = PAINT_EVERY
            while not self.stop.wait(rest):
                before = self.spent
                self._paint()
                rest = pause(self.spent - before)
            self._paint()
        except Exception as error:
            # A failing view must not end the run, which continues with plain lines.
            say(f"the live view has stopped: {error}")

    def _paint(self) -> None:
        self.painter.paint(partial(screen, self.follower.read()))
        self.spent = time.thread_time()

    def close(self) -> None:
        """Paint a last time, and leave the text on the screen."""
        self.stop.set()
        self.thread.join()
        self.painter.leave()


def pause(cost: float) -> float:
    """Seconds until the next refresh, given the CPU seconds of the last: on a busy machine the view refreshes less
    often.
    """
    return min(PAINT_LEAST, max(PAINT_EVERY, cost / PAINT_SHARE))
