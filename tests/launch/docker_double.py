"""A command that behaves like `docker --context CONTEXT ...`, as far as the script for several engines uses it.

Containers are processes; ENGINES is a folder with a file for each context, which holds the words that start a process there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

HOME = Path(os.environ["ENGINES"])
VALUED = ("--name", "--env", "--entrypoint", "--time", "--tail")
"""Options whose value is a word of its own."""


def main() -> int:
    assert sys.argv[1] == "--context", sys.argv
    context, verb, words = sys.argv[2], sys.argv[3], sys.argv[4:]
    options: dict[str, str] = {}
    while words and words[0].startswith("--"):
        option = words.pop(0)
        options[option] = words.pop(0) if option in VALUED else ""
    if (HOME / f"{context}.down").exists():
        print("Cannot connect to the Docker daemon", file=sys.stderr)
        return 1
    if verb == "version":
        return 0
    if verb == "run":
        return run(context, options, words[1:])
    home = HOME / words[0]
    if not home.exists():
        return 0 if verb == "rm" else 1
    if verb == "exec":
        return subprocess.run(inside(home, words[1:]), check=False).returncode
    if verb == "wait":
        while not (home / "code").exists():
            time.sleep(0.1)
        print((home / "code").read_text().strip())
    if verb == "logs":
        shown = 0
        while True:
            text = (home / "log").read_text()
            print(text[shown:], end="", flush=True)
            shown = len(text)
            if "--follow" not in options or (home / "code").exists():
                break
            time.sleep(0.2)
    if verb in ("stop", "rm", "kill"):
        end(home, signal.SIGTERM if verb == "stop" else signal.SIGKILL)
    if verb == "rm":
        shutil.rmtree(home)
    return 0


def inside(home: Path, words: list[str]) -> list[str]:
    """Words of a container, whose secrets lie in a folder of its own."""
    return [word.replace("/run/secrets", str(home / "secrets")) for word in words]


def run(context: str, options: dict[str, str], words: list[str]) -> int:
    home = HOME / options["--name"]
    (home / "secrets").mkdir(parents=True)
    name, _, value = options["--env"].partition("=")
    start = json.loads((HOME / f"{context}.json").read_text())
    waiting = f'"$@" > {home}/log 2>&1; echo $? > {home}/new; mv {home}/new {home}/code'
    process = subprocess.Popen(
        ["sh", "-c", waiting, "sh", *start, options["--entrypoint"], *inside(home, words)],
        env=os.environ | {name: value},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    (home / "pid").write_text(str(process.pid))
    return 0


def end(home: Path, number: int) -> None:
    """Signal the first process of a container; its shell notes the code."""
    with contextlib.suppress(psutil.Error, FileNotFoundError):
        shell = psutil.Process(int((home / "pid").read_text()))
        inside = shell.children(recursive=number == signal.SIGKILL)
        for process in inside:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        shell.wait(60)


if __name__ == "__main__":
    sys.exit(main())
