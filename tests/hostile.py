"""A job folder and a run folder made to do harm, and a record of what all processes of a command did with them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from tests import own_job
from tests.paths import ROOT

ESCAPES = "b\nrun runs/../../outside starts\x1b]0;owned\x07\x1b[2J\x9b31m"
"""A name of a class that prints a line like ours, sets the title of a terminal and clears it."""
SECRET = "the key of somebody"
JOB = """
name: hostile
task: image-classification
data: {train: photos.jsonl, validation: 0.25, image_size: 8}
model: {name: small-cnn, width: 2}
train: {epochs: 1, batch_size: 8}
optimize: {measure: off, cpu_threads: 1}
"""
CANARY = """
import os

if path := os.environ.get("HOSTILE_CANARY"):
    open(path, "w").close()
"""
HOOK = """
import os, sys

LOG = os.open(os.environ["HOSTILE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
PROGRAMS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "pty.spawn")


def hear(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        kind = "write" if (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else "read"
        line = f"{kind} {os.path.abspath(os.fsdecode(arguments[0]))!r}"
    elif event in PROGRAMS:
        line = f"program {str(arguments[0])!r}"
    elif event == "socket.connect":
        line = f"connect {arguments[1]!r}"
    else:
        return
    os.write(LOG, (line + "\\n").encode(errors="backslashreplace"))


sys.addaudithook(hear)
"""


@dataclass
class Outside:
    """What lies beside the hostile folder and is nobody's business: secrets to read, and a file that a program makes."""

    path: Path
    secrets: tuple[Path, ...] = field(init=False)
    canary: Path = field(init=False)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True)
        self.secrets = (self.path / "key", self.path / "bashrc")
        self.canary = self.path / "canary"
        for secret in self.secrets:
            secret.write_text(SECRET)
        (self.path / "state.json").write_text(json.dumps({"status": "done", "source": SECRET}))

    def check(self) -> None:
        """Nothing ran, and nothing was changed or added."""
        assert sorted(path.name for path in self.path.iterdir()) == ["bashrc", "key", "state.json"]
        assert [secret.read_text() for secret in self.secrets] == [SECRET] * len(self.secrets)


def write_job(folder: Path, outside: Outside) -> Path:
    """A job whose repository, class names and job file are made to do harm; returns the spec."""
    generator = np.random.default_rng(0)
    rows = []
    for label, name in enumerate(("a", ESCAPES)):
        class_folder = Path("photos") / name.replace("/", "|")
        (folder / class_folder).mkdir(parents=True)
        for number in range(12):
            pixels = generator.integers(0, 120, (8, 8, 3)) + 120 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / class_folder / f"{number}.png")
            rows.append({"path": str(class_folder / f"{number}.png"), "label": name})
    (folder / "photos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "weights.pt").write_bytes(pickle.dumps(_Touch(outside.canary)))
    job = folder / "job.yaml"
    job.write_text(JOB)
    plant_repository(folder, outside)
    return job


class _Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def write_code_job(folder: Path) -> Path:
    """A job with code of its own, which makes the file that HOSTILE_CANARY names; returns the spec."""
    (folder / "my_data.py").write_text(CANARY + own_job.DATA)
    (folder / "my_model.py").write_text(CANARY + own_job.MODEL)
    job = folder / "job.yaml"
    job.write_text(own_job.JOB.format(data="", model="", train="", checkpoint=""))
    return job


def plant_repository(folder: Path, outside: Outside) -> None:
    """A repository whose own settings run programs."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(folder)]
    for arguments in (["init", "-q"], ["add", "job.yaml"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *arguments], check=True)
    program = f"touch {outside.canary}; cat"
    settings = {
        "filter.x.clean": program,
        "filter.x.smudge": program,
        "filter.x.process": program,
        "core.fsmonitor": program,
        "core.hooksPath": str(folder / ".git" / "hooks"),
        "core.pager": program,
        "core.sshCommand": program,
        "diff.external": program,
        "diff.x.textconv": program,
        "remote.origin.url": f"ext::sh -c 'touch {outside.canary}'",
        "remote.origin.promisor": "true",
        "extensions.partialClone": "origin",
    }
    for key, value in settings.items():
        subprocess.run([*git, "config", key, value], check=True)
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text("* filter=x diff=x\n")
    os.utime(folder / "job.yaml", (1, 1))  # git must read the file again to know whether it has changed


LINKS = {
    "events.jsonl": "bashrc",
    "metrics.jsonl": "bashrc",
    "telemetry.jsonl": "bashrc",
    "state.json": "state.json",
    "plan.json": "key",
    "job.yaml": "key",
    "report.html": "key",
    "report.md": "new",
    ".lock": "new",
    "tensorboard": "",
    "tracker": "",
    "checkpoints": "",
    "model": "",
    "model/config.json": "key",
    "model/model.safetensors": "key",
}
"""Where a link is put in a run folder, and what it leads to, which may be missing."""


def plant_link(run: Path, name: str, outside: Outside) -> None:
    """Replace a file or folder of a run by a link that leads outside."""
    path = run / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(outside.path / LINKS[name])


@dataclass
class CommandOutcome:
    """A command that has ended, and what its processes did."""

    code: int
    output: str
    actions: list[str]

    def of_kind(self, kind: str) -> list[str]:
        """The actions of one kind: read, write, program or connect."""
        return [line.removeprefix(f"{kind} ") for line in self.actions if line.startswith(f"{kind} ")]


def watch_command(
    arguments: list[str], folder: Path, scratch: Path, root: Path = ROOT, **variables: str
) -> CommandOutcome:
    """Run `drivetrain` of a checkout in a folder, with an audit hook in it and in all Python processes that it starts."""
    (scratch / "hook").mkdir(exist_ok=True)
    (scratch / "hook" / "sitecustomize.py").write_text(HOOK)
    log = scratch / "log"
    log.unlink(missing_ok=True)
    path = os.pathsep.join((str(scratch / "hook"), str(root / "runtime"), str(root), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-m", "drivetrain", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "HOSTILE_LOG": str(log), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    actions = log.read_text(errors="replace").splitlines()
    return CommandOutcome(done.returncode, done.stdout.decode(errors="surrogateescape"), actions)


def is_plain(output: str) -> bool:
    """Whether a text has no control character but the end of a line and a tab, and prints no run that is none."""
    # At most the carriage return of a progress line; everything else could move the cursor or set the terminal.
    plain = all(character in "\n\t\r" or character.isprintable() for character in output)
    return plain and not any(line.startswith("run runs/..") for line in output.splitlines())
