"""What a painted view says."""

from __future__ import annotations

import io
from typing import cast

from rich.console import Console

from drivetrain.tracking.live.dashboard import render
from drivetrain.tracking.live.run_reader import RunView


def read_text(view: RunView, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(render(view, width))
    return cast(io.StringIO, console.file).getvalue()
