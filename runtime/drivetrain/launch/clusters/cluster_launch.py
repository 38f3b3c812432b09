"""`drivetrain launch JOB --on ENGINE`: writes one file for the engine, and prints or runs the command that submits it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from drivetrain.errors import DeviceError
from drivetrain.job.hub_address import is_on_hub
from drivetrain.launch import one_line, template
from drivetrain.launch.clusters import site
from drivetrain.launch.clusters.cluster_job import resolve
from drivetrain.launch.clusters.engines import ENGINES
from drivetrain.launch.container import LaunchRequest
from drivetrain.system.console import say
from drivetrain.system.files import write_text


def launch(request: LaunchRequest) -> int:
    """Write the file, and submit it if asked; returns the exit code. Raises DrivetrainError if job or site is invalid."""
    work = resolve(request)
    texts = {"the working folder": Path.cwd(), "the job file": work.spec, "this Python": sys.executable}
    texts |= {f"an option of train, {number}": word for number, word in enumerate(work.options, start=1)}
    one_line.check(texts | {"--output": request.output or ""})
    file = ENGINES[request.engine](work, *site.load(request.site, request.engine))
    path = (request.output or Path(f"{work.job.name}{file.suffix}")).absolute()
    for _, text in work.job.data_paths():
        if is_on_hub(text):
            cache = "a cache of the hub in a shared folder (HF_HOME), which `drivetrain fetch` fills"
            say(f"data {text}: the nodes need a network, or {cache}")
    count = f"{work.least} to {work.nodes}" if work.least < work.nodes else f"{work.nodes}"
    node_count = f"{count} node{'s' * (work.nodes > 1)}"
    values = {"job_name": work.job.name, "node_count": node_count, "nodes": work.nodes, **file.values}
    kind, plural = ("GPU", "GPUs") if work.gpus else ("process", "processes")
    size = f"{node_count}, {work.per_node} {plural if work.per_node > 1 else kind} on each"
    say(f"{path} {_write(path, template.fill(file.template, values))}: {size}")
    command = [*file.submit, str(path)]
    if request.submit:
        _run(command, path)
    say(f"progress: {file.progress}" if request.submit else f"to submit it: {shlex.join(command)}")
    return 0


def _write(path: Path, text: str) -> str:
    """Write the file, and say what became of one that was there; somebody may have edited it."""
    if not path.exists():
        write_text(path, text)
        return "written"
    if path.read_text(encoding="utf-8", errors="replace") == text:
        return "is unchanged"
    before = path.with_name(f"{path.name}.before")
    path.replace(before)
    write_text(path, text)
    return f"written; the earlier one is now {before.name}"


def _run(command: list[str], path: Path) -> None:
    """Run the engine's own tool; raises DeviceError if it is missing, or refuses."""
    if shutil.which(command[0]) is None:
        possible, action = "a machine from which jobs are submitted", f"run there: {shlex.join(command)}"
        raise DeviceError(f"--submit: there is no {command[0]} here", possible, action)
    if code := subprocess.run(command, check=False).returncode:
        action = f"correct the site file or {path.name}, then run: {shlex.join(command)}"
        raise DeviceError(f"{command[0]} ended with exit code {code}", "see its message above", action)
