"""`drivetrain launch JOB --on ENGINE`: writes one file for the engine, and prints or runs the command that submits it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from drivetrain.errors import DeviceError
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.limits import NodeRange
from drivetrain.launch import one_line, template
from drivetrain.launch.clusters import kubernetes, site, skypilot, slurm
from drivetrain.launch.clusters.cluster_job import FIXED, ClusterFile, ClusterJob, ClusterRequest, resolve
from drivetrain.system.console import say
from drivetrain.system.files import write_text

ENGINES: dict[str, Callable[[ClusterJob, Any, str], ClusterFile]] = {
    "slurm": slurm.prepare,
    "k8s": kubernetes.prepare,
    "skypilot": skypilot.prepare,
}
"""Each takes the job, the section of the site file, and the name of that file; raises SpecError if the job cannot train there."""


def launch(request: ClusterRequest) -> int:
    """Write the file, and submit it if asked; returns the exit code. Raises DrivetrainError if job or site is invalid."""
    work = resolve(request)
    texts = {"the working folder": work.folder, "the job file": work.spec, "this Python": sys.executable}
    texts |= {f"an option of train, {number}": word for number, word in enumerate(work.options, start=1)}
    one_line.check({name: str(text) for name, text in (texts | {"--output": request.output or ""}).items()})
    file = ENGINES[request.engine](work, *site.load(request.site, request.engine))
    path = (request.output or Path(f"{work.job.name}{file.suffix}")).absolute()
    for line in (*file.notes, *_note_needs(work, request.engine)):
        say(line)
    kind, plural = ("GPU", "GPUs") if work.gpus else ("process", "processes")
    size = f"{work.describe_nodes()}, {work.per_node} {plural if work.per_node > 1 else kind} on each"
    say(f"{path} {_write(path, template.fill(file.template, file.values))}: {size}")
    command = [*file.submit, str(path)]
    if not request.submit:
        say(f"to submit it: {shlex.join(command)}")
        return 0
    _run(command, path)
    say(f"progress: {file.progress}")
    return 0


def _note_needs(work: ClusterJob, engine: str) -> Iterator[str]:
    """Yield what the nodes need, and that there will be no fewer of them although the job allows it."""
    for _, text in work.job.data_paths():
        if is_on_hub(text):
            yield (
                f"data {text}: the nodes need a network, or a cache of the hub in a shared folder (HF_HOME), which "
                "`drivetrain fetch` fills"
            )
    if engine in FIXED and isinstance(work.job.limits.nodes, NodeRange):
        yield (
            f"limits.nodes is {work.job.limits.nodes}: {work.nodes} in each attempt, since {FIXED[engine]}; to go on with "
            "another number, launch again with --nodes N"
        )


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
