"""Reports as a browser sees them: size, what is loaded from elsewhere, what the console says; and pictures to look at.

    python benchmarks/reports.py RUN [RUN ...] [--pictures DIR] [--browser chromium]

Each report.html is opened by a headless Chromium at desktop and phone width, light and dark. 1 if one is 2 MB or more,
asks for anything beside itself, is wider than the window, or leaves a message on the console.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WIDTHS = {"desktop": 1280, "phone": 390}
MOST = 2_000_000
QUIET = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-sync",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
]


def main() -> int:
    """Open every report in every way, and print a row for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--pictures", type=Path, help="where the pictures go")
    parser.add_argument("--browser", default="chromium")
    given = parser.parse_args()
    print("| report | bytes | requests | console | wider than the window at |\n| --- | --- | --- | --- | --- |")
    worst, usual = 0, own(given.browser)
    for run in given.runs:
        page = (run if run.suffix == ".html" else run / "report.html").resolve(strict=True)
        opened = [
            (f"{width}-{theme}", look(given.browser, page, WIDTHS[width], theme, given.pictures, run.name))
            for width in WIDTHS
            for theme in ("light", "dark")
        ]
        asked = sorted({host for _, seen in opened for host in seen["requests"]} - usual)
        said = sorted({line for _, seen in opened for line in seen["console"]})
        wide = [name for name, seen in opened if seen["wide"]]
        size = page.stat().st_size
        print(f"| {run.name} | {size:,} | {asked or 0} | {said or 0} | {', '.join(wide) or 'none'} |", flush=True)
        worst |= size >= MOST or bool(asked or said or wide)
    return int(worst)


def look(browser: str, page: Path, width: int, theme: str, pictures: Path | None, name: str) -> dict[str, Any]:
    """One opening: requests that leave the file, console lines, whether it is wider than the window."""
    scheme = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
    with tempfile.TemporaryDirectory() as folder:
        # Its own text, framed in a page of ours that reads its height and width: the report itself runs no script.
        frame = Path(folder) / "frame.html"
        frame.write_text(FRAME.format(page=page.as_uri(), width=width))
        common = [browser, *QUIET, scheme, f"--user-data-dir={folder}/profile", "--allow-file-access-from-files"]
        shown = run([*common, "--virtual-time-budget=4000", "--dump-dom", f"--window-size={width},900", frame.as_uri()])
        height, inner = map(int, re.search(r"<title>(\d+) (\d+)</title>", shown.stdout).groups())
        log = Path(folder) / "net.json"
        kept = pictures / f"{name}-{width}-{theme}.png" if pictures else Path(folder) / "picture.png"
        kept.parent.mkdir(parents=True, exist_ok=True)
        done = run(
            [*common, f"--log-net-log={log}", f"--screenshot={kept}", f"--window-size={width},{height}", page.as_uri()]
        )
        return {
            "requests": requests(log),
            "wide": inner > width,
            "console": re.findall(r"CONSOLE[^\]]*\] (.*)", done.stderr),
        }


FRAME = """<!DOCTYPE html><style>html,body{{margin:0}}iframe{{border:0;width:{width}px;height:900px}}</style>
<iframe src="{page}" onload="const d=this.contentDocument.documentElement;
document.title=d.scrollHeight+' '+d.scrollWidth"></iframe>"""


def run(line: list[str]) -> subprocess.CompletedProcess[str]:
    """The browser, to its end."""
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)


def requests(log: Path) -> set[str]:
    """Hosts of the network that were asked for; the browser writes them all down."""
    addresses = re.findall(r'"url":("(?:https?|wss?|ftp):[^"]*")', log.read_text())
    return {urlsplit(json.loads(address)).netloc for address in addresses}


def own(browser: str) -> set[str]:
    """Hosts that the browser asks by itself, for updates and the time, and that a page which asks for one adds to them."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for name, text in (("empty", ""), ("asking", '<img src="https://asked.example/x.png">')):
            page, log = Path(folder) / f"{name}.html", Path(folder) / f"{name}.json"
            page.write_text(f"<!DOCTYPE html><title>{name}</title>{text}")
            run(
                [
                    browser,
                    *QUIET,
                    f"--user-data-dir={folder}/profile",
                    f"--log-net-log={log}",
                    f"--screenshot={folder}/{name}.png",
                    page.as_uri(),
                ]
            )
            found.append(requests(log))
    if "asked.example" not in found[1]:
        raise SystemExit(f"{browser} does not write down what a page asks for, so nothing can be told")
    return (found[0] | found[1]) - {"asked.example"}


if __name__ == "__main__":
    sys.exit(main())
