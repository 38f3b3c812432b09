"""The pictures in docs/images: the report and the live view of a run of the digits job, as a browser draws them.

python -m docs.generate.pictures docs/images [--set KEY=VALUE] [--browser chromium]

It trains the job in a temporary folder, takes the live view at two thirds of the steps and the report at the end.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI

from drivetrain.tracking.live.dashboard import render
from drivetrain.tracking.live.run_reader import RunReader

ROOT = Path(__file__).resolve().parents[2]
COLUMNS, REPORT = 64, (860, 800)
"""Columns of the terminal; width and height of the report's picture, whose rest is cut off."""
COLORS = 96
"""Of a picture; a third of the bytes, and no eye sees it."""
LIVE_VIEW_SHARE = 2 / 3
"""Share of the steps at which the live view is taken."""


def main() -> None:
    """Train, and take the pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--browser", default="chromium")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "runs" / "digits-001"
        set_options = [word for text in options.set for word in ("--set", text)]
        command = [sys.executable, "-m", "drivetrain", "train", str(ROOT / "jobs/digits.yaml"), *set_options]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"}
        child = subprocess.Popen(
            [*command, "--runs", str(run.parent)], cwd=scratch, env=environment, stdout=subprocess.DEVNULL
        )
        try:
            Path(scratch, "live.html").write_text(take_live_view(run, child), encoding="utf-8")
            assert child.wait() == 0, "the training failed"
        finally:
            child.terminate()
        take_picture(options.browser, Path(scratch, "live.html"), folder / "live.png", (656, 224), "light")
        for theme in ("light", "dark"):
            take_picture(options.browser, run / "report.html", folder / f"report-{theme}.png", REPORT, theme)


def take_live_view(run: Path, child: subprocess.Popen[bytes]) -> str:
    """The live view as a page, once the run is far enough."""
    follower = None
    while child.poll() is None:
        if (run / "job.yaml").exists():
            follower = follower or RunReader(run)
            view = follower.read()
            if view.total and view.step >= LIVE_VIEW_SHARE * view.total:
                view.folder = Path("runs") / run.name
                return make_page(
                    Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True), render(view, COLUMNS)
                )
        time.sleep(0.2)
    raise SystemExit("the training ended before the picture of the live view was taken")


def make_page(console: Console, content: object) -> str:
    """A terminal window with this content."""
    console.print(content)
    style = (
        "body{margin:0;background:#0c0c0c;color:#e8e8e8;padding:14px 18px;box-sizing:border-box;"
        "font:16px/1.36 'DejaVu Sans Mono',monospace}pre{margin:0;font:inherit}"
    )
    text = console.export_html(inline_styles=True, theme=MONOKAI, code_format="<pre>{code}</pre>")
    return f"<!DOCTYPE html><meta charset=utf-8><style>{style}</style>{text}"


def take_picture(browser: str, file: Path, picture: Path, size: tuple[int, int], theme: str) -> None:
    """A picture of the top of a page."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}",
                f"--user-data-dir={profile}",
                f"--window-size={size[0]},{size[1]}",
                f"--screenshot={picture}",
                file.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    with Image.open(picture) as image:
        image.convert("RGB").quantize(COLORS).save(picture, optimize=True)


if __name__ == "__main__":
    main()
