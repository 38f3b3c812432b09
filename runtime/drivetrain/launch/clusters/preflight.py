"""What is checked before a job goes to a cluster: its files, its time to stop, and its access to stores."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from drivetrain.errors import CheckpointError, Problem, SpecError
from drivetrain.job import Job, dot_key, remote_data
from drivetrain.job.custom import list_user_functions
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.values import parse_duration, parse_interval
from drivetrain.launch import mounts
from drivetrain.launch.clusters.cluster_job import ClusterJob
from drivetrain.report.record import Summary, read, summarize
from drivetrain.storage import store_variables
from drivetrain.storage.remote_address import is_remote
from drivetrain.supervisor.remote_copy.copy_thread import STOPPED_SECONDS
from drivetrain.supervisor.run_folder import list_numbered
from drivetrain.supervisor.supervisor import STOPPED_REPORT

File = tuple[str, str, str]
"""Of a job: where it is named, the key there, and its path."""


def check_shared_folders(work: ClusterJob, shared: Sequence[str], site: str, *, own_python: bool) -> None:
    """Refuse (SpecError) files outside of the folders that all nodes see, with this Python environment if they use it."""
    job = work.job
    files = [(str(work.spec), "", str(work.spec)), ("runs", "", str(work.folder / "runs"))]
    files += [_locate(job, key, os.path.abspath(job.resolve(text))) for key, text in mounts.list_paths(job)]
    files += [_locate(job, key, os.path.abspath(job.folder / file)) for key, file in _list_code(job)]
    files += [("python", "", sys.prefix)] * own_python
    folders = [os.path.realpath(folder) for folder in shared]
    outside = [file for file in files if not _is_below(os.path.realpath(file[2]), folders)]
    possible = f"below {', '.join(shared)}" if shared else "folders that all nodes see; the site file lists none"
    action = f"move it there, or list its folder under `shared:` in {site} if all nodes see it"
    _refuse(outside, "is not in a shared folder", possible, action)


def check_volumes(work: ClusterJob, runs: str, volumes: Sequence[str], key: str) -> None:
    """Refuse (SpecError) paths below none of the volumes of a container, which `key` of the site lists.

    No path is looked at here: volumes may not be mounted.
    """
    job = work.job
    paths = [*remote_data.list_local_paths(job), *(row for row in job.model_paths() if not is_remote(row[1]))]
    # A name of a network that does not begin as a path is none.
    paths = [row for row in paths if row[0][-1] not in ("name", "pretrained") or row[1].startswith(("/", ".", "~"))]
    paths = [row for row in paths if not is_on_hub(row[1])] + _list_code(job)
    files = [(key, "runs", runs), *(_locate(job, *row) for row in paths)]
    outside = [file for file in files if not _is_below(file[2], volumes) or ".." in file[2].split("/")]
    possible = f"below {', '.join(volumes)}" if volumes else f"below a volume; {key} lists none"
    action = f"write its path in the container, below a volume of {key}"
    _refuse(outside, "is below no volume that the container has", possible, action)


def _list_code(job: Job) -> list[tuple[tuple[str, ...], str]]:
    """The files of the user's code with their keys."""
    return [((*key, "file"), part.file) for key, part, _ in list_user_functions(job)]


def _locate(job: Job, key: tuple[str, ...], path: str) -> File:
    return job.document.place(key), dot_key(key), path


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def _refuse(files: Iterable[File], fault: str, possible: str, action: str) -> None:
    if problems := [Problem(location, key, f"{path} {fault}", possible, action) for location, key, path in files]:
        raise SpecError(problems)


def check_grace(work: ClusterJob, grace: str, section: str) -> str:
    """The line that says whether the time after a signal suffices; raises SpecError if an earlier run needed longer."""
    runs, name = work.folder / "runs", work.job.name
    copy_note = f"; and up to {STOPPED_SECONDS:.0f} s for checkpoint.copy_to" if work.job.checkpoint.copy_to else ""
    for run in reversed(list_numbered(runs, name) if runs.is_dir() else []):
        seconds = None
        with contextlib.suppress(CheckpointError):
            seconds = _estimate_stop_seconds(work.job, summarize(read(run)))
        if seconds is None:
            continue
        if seconds > parse_duration(grace):
            raise SpecError(
                f"{section}: grace is {grace}, and a step and a save took about {seconds:.0f} s in {run.name}",
                f"more than {seconds:.0f} s; what has happened since the last checkpoint would be lost each time",
                f"set grace: {2 * seconds:.0f}s",
            )
        return f"grace period {grace}: a step and a save took about {seconds:.0f} s in {run.name}{copy_note}"
    return f"grace period {grace}: not compared with a step and a save, since no earlier run of {name} is in {runs}{copy_note}"


def _estimate_stop_seconds(job: Job, result: Summary) -> float | None:
    """Seconds of a step, a save and the report, all on average; None if the run does not say."""
    if not result.steps or not result.seconds or "checkpoint" not in result.phases:
        return None
    kind, every = parse_interval(job.checkpoint.every)
    lasted = {"seconds": result.seconds, "steps": result.steps, "epoch": result.epochs or 1}[kind]
    training_seconds = sum(result.phases.get(phase, 0.0) for phase in ("train", "input", "forward", "optimizer"))
    save_seconds = result.phases["checkpoint"] / (1 + lasted // every)
    return training_seconds / result.steps + save_seconds + STOPPED_REPORT


def list_store_variables(work: ClusterJob) -> list[str]:
    """The variables of the job's stores that are set here."""
    return [
        name for scheme in remote_data.list_schemes(work.job) for name in store_variables.read_known(scheme, os.environ)
    ]


def list_missing_credentials(work: ClusterJob, variables: Iterable[str]) -> list[tuple[str, str]]:
    """The job's stores for which none of the variables is a credential: how their variables begin, and how their addresses do."""
    prefixes = [(store_variables.PREFIXES.get(scheme), scheme) for scheme in remote_data.list_schemes(work.job)]
    names = tuple(variables)
    return [
        (f"{prefix}...", f"{scheme}://")
        for prefix, scheme in prefixes
        if prefix and not any(name.startswith(prefix) for name in names)
    ]
