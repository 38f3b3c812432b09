"""`drivetrain launch JOB --on ENGINE`: writes one file for the engine, and prints or runs the command that submits it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.errors import DeviceError
from drivetrain.job.limits import NodeRange
from drivetrain.launch import one_line
from drivetrain.launch.clusters import kubernetes, shared_folders, site, skypilot, slurm, template
from drivetrain.launch.clusters.cluster_job import ClusterJob, ClusterRequest, resolve
from drivetrain.system.console import say
from drivetrain.system.files import write_text


@dataclass(frozen=True)
class Engine:
    """How jobs reach an engine that takes files like a template."""

    template: str
    suffix: str
    """Of the file that is written."""
    check: Callable[[ClusterJob, Any, str], list[str]]
    """Takes the job, the section of the site file, and the file's name; refuses what would fail; returns lines for the user."""
    list_values: Callable[[ClusterJob, Any], dict[str, object]]
    submit: Callable[[ClusterJob], list[str]]
    """The command that takes the file."""
    follow: Callable[[ClusterJob], str]
    """What shows its progress, for the user."""
    sees_data: bool = False
    """Whether data is looked at here, since the nodes see the same folders."""
    fixed: str = ""
    """Why the number of nodes cannot change between attempts; empty if it can."""


ENGINES = {
    "slurm": Engine(
        "slurm.sbatch",
        ".sbatch",
        slurm.check,
        slurm.list_values,
        lambda work: ["sbatch"],
        lambda work: f"squeue --me, and {slurm.log(work)}",
        sees_data=True,
    ),
    "k8s": Engine(
        "kubernetes.yaml",
        ".k8s.yaml",
        kubernetes.check,
        kubernetes.list_values,
        lambda work: ["kubectl", "create", "-f"],
        kubernetes.follow,
        fixed="an indexed Job of Kubernetes starts each of its pods again",
    ),
    "skypilot": Engine(
        "skypilot.yaml",
        ".sky.yaml",
        skypilot.check,
        skypilot.list_values,
        skypilot.submit,
        lambda work: f"sky jobs logs --name {work.job.name}",
        fixed="SkyPilot starts all nodes of a task, or none",
    ),
}


def launch(request: ClusterRequest) -> int:
    """Write the file, and submit it if asked; returns the exit code.

    Raises:
        DrivetrainError: if job or site is invalid, or the engine does not take it.
    """
    engine = ENGINES[request.engine]
    work = resolve(request, unseen=not engine.sees_data, shrinks=not engine.fixed)
    path = (request.output or Path(f"{work.job.name}{engine.suffix}")).absolute()
    one_line.check(
        {
            "the working folder": str(work.folder),
            "the job file": str(work.spec),
            "this Python": sys.executable,
            "--output": str(path),
            **{f"an option of train, {number}": word for number, word in enumerate(work.options, start=1)},
        }
    )
    site_file, named = site.load(request.site)
    section = site_file.section(request.engine, named)
    for line in (*engine.check(work, section, named), *shared_folders.notes(work), *_note_fixed_size(work, engine)):
        say(line)
    say(f"{path} {_write(path, template.fill(engine.template, engine.list_values(work, section)))}: {_size(work)}")
    command = [*engine.submit(work), str(path)]
    if not request.submit:
        say(f"to submit it: {shlex.join(command)}")
        return 0
    _run(command, path)
    say(f"progress: {engine.follow(work)}")
    return 0


def _note_fixed_size(work: ClusterJob, engine: Engine) -> Iterator[str]:
    """Says that there will be no fewer nodes, although the job allows it."""
    if engine.fixed and isinstance(work.job.limits.nodes, NodeRange):
        yield (
            f"limits.nodes is {work.job.limits.nodes}: {work.nodes} in each attempt, since {engine.fixed}; to go on with "
            "another number, launch again with --nodes N"
        )


def _size(work: ClusterJob) -> str:
    kind = "GPU" if work.gpus else "process"
    plural = ("es" if kind == "process" else "s") * (work.per_node > 1)
    return f"{work.describe_nodes()}, {work.per_node} {kind}{plural} on each"


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
    """Run the engine's own tool.

    Raises:
        DeviceError: if it is missing, or refuses.
    """
    if shutil.which(command[0]) is None:
        raise DeviceError(
            f"--submit: there is no {command[0]} here",
            "a machine from which jobs are submitted",
            f"run there: {shlex.join(command)}",
        )
    if code := subprocess.run(command, check=False).returncode:
        raise DeviceError(
            f"{command[0]} ended with exit code {code}",
            "see its message above",
            f"correct the site file or {path.name}, then run: {shlex.join(command)}",
        )
