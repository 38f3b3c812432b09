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
MAX_BYTES = 2_000_000
BROWSER_OPTIONS = [
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
    options = parser.parse_args()
    print("| report | bytes | requests | console | wider than the window at |\n| --- | --- | --- | --- | --- |")
    is_bad, browser_hosts = 0, find_browser_hosts(options.browser)
    for run in options.runs:
        page = (run if run.suffix == ".html" else run / "report.html").resolve(strict=True)
        views = [
            (
                f"{width}-{theme}",
                open_page(options.browser, page, WIDTHS[width], theme, options.pictures, run.name),
            )
            for width in WIDTHS
            for theme in ("light", "dark")
        ]
        hosts = sorted({host for _, view in views for host in view["requests"]} - browser_hosts)
        messages = sorted({line for _, view in views for line in view["console"]})
        too_wide = [name for name, view in views if view["wide"]]
        size = page.stat().st_size
        print(
            f"| {run.name} | {size:,} | {hosts or 0} | {messages or 0} | {', '.join(too_wide) or 'none'} |",
            flush=True,
        )
        is_bad |= size >= MAX_BYTES or bool(hosts or messages or too_wide)
    return int(is_bad)


def open_page(browser: str, page: Path, width: int, theme: str, pictures: Path | None, name: str) -> dict[str, Any]:
    """Open a page; returns the hosts it asks, the lines on its console, and whether it is wider than the window."""
    scheme = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
    with tempfile.TemporaryDirectory() as folder:
        # Its own text, framed in a page of ours that reads its height and width: the report itself runs no script.
        frame = Path(folder) / "frame.html"
        frame.write_text(FRAME.format(page=page.as_uri(), width=width))
        common = [
            browser,
            *BROWSER_OPTIONS,
            scheme,
            f"--user-data-dir={folder}/profile",
            "--allow-file-access-from-files",
        ]
        process = run_browser(
            [*common, "--virtual-time-budget=4000", "--dump-dom", f"--window-size={width},900", frame.as_uri()]
        )
        height, inner_width = map(int, re.search(r"<title>(\d+) (\d+)</title>", process.stdout).groups())
        log = Path(folder) / "net.json"
        picture = pictures / f"{name}-{width}-{theme}.png" if pictures else Path(folder) / "picture.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        screenshot = run_browser(
            [
                *common,
                f"--log-net-log={log}",
                f"--screenshot={picture}",
                f"--window-size={width},{height}",
                page.as_uri(),
            ]
        )
        return {
            "requests": read_hosts(log),
            "wide": inner_width > width,
            "console": re.findall(r"CONSOLE[^\]]*\] (.*)", screenshot.stderr),
        }


FRAME = """<!DOCTYPE html><style>html,body{{margin:0}}iframe{{border:0;width:{width}px;height:900px}}</style>
<iframe src="{page}" onload="const d=this.contentDocument.documentElement;
document.title=d.scrollHeight+' '+d.scrollWidth"></iframe>"""


def run_browser(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the browser to its end."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def read_hosts(log: Path) -> set[str]:
    """Hosts of the network in the log of all requests of the browser."""
    addresses = re.findall(r'"url":("(?:https?|wss?|ftp):[^"]*")', log.read_text())
    return {urlsplit(json.loads(address)).netloc for address in addresses}


def find_browser_hosts(browser: str) -> set[str]:
    """Hosts that the browser asks by itself, for updates and the time, with an empty page and one with a picture."""
    with tempfile.TemporaryDirectory() as folder:
        hosts_by_page = []
        for name, text in (("empty", ""), ("asking", '<img src="https://asked.example/x.png">')):
            page, log = Path(folder) / f"{name}.html", Path(folder) / f"{name}.json"
            page.write_text(f"<!DOCTYPE html><title>{name}</title>{text}")
            run_browser(
                [
                    browser,
                    *BROWSER_OPTIONS,
                    f"--user-data-dir={folder}/profile",
                    f"--log-net-log={log}",
                    f"--screenshot={folder}/{name}.png",
                    page.as_uri(),
                ]
            )
            hosts_by_page.append(read_hosts(log))
    if "asked.example" not in hosts_by_page[1]:
        raise SystemExit(f"{browser} does not log what a page asks for, so nothing can be told")
    return (hosts_by_page[0] | hosts_by_page[1]) - {"asked.example"}


if __name__ == "__main__":
    sys.exit(main())
