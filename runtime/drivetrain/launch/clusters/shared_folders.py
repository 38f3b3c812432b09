"""Refuses what a node of the cluster could not see: data, code or run folders outside of the shared folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from drivetrain.errors import Problem, SpecError
from drivetrain.job import custom as custom_job
from drivetrain.job import dot_key
from drivetrain.job.hub_address import is_on_hub
from drivetrain.launch import mounts
from drivetrain.launch.clusters.cluster_job import ClusterJob


def check(work: ClusterJob, shared: Sequence[str], site: str, *, own_python: bool) -> None:
    """Refuse a job whose files the nodes do not see.

    Args:
        work: the job.
        shared: folders that all nodes see.
        site: the file that says so, for messages.
        own_python: whether the nodes use the Python environment of this process.

    Raises:
        SpecError: with every such file.
    """
    folders = [Path(shared_folder).resolve() for shared_folder in shared]
    possible = f"below {', '.join(shared)}" if shared else "folders that all nodes see; the site file lists none"
    action = f"move it there, or list its folder under `shared:` in {site} if all nodes see it"
    problems = [
        Problem(location, key, f"{path} is not in a shared folder", possible, action)
        for location, key, path in _list_needed(work, own_python=own_python)
        if not any(Path(path).resolve().is_relative_to(folder) for folder in folders)
    ]
    if problems:
        raise SpecError(problems)


def _list_needed(work: ClusterJob, *, own_python: bool) -> Iterator[tuple[str, str, str]]:
    """What a node reads or writes: place, key, path."""
    job = work.job
    yield str(work.spec), "", str(work.spec)
    yield "runs", "", str(work.folder / "runs")
    for key, text in mounts.list_paths(job):
        yield job.document.place(key), dot_key(key), os.path.abspath(job.resolve(text))
    for key, part, _ in custom_job.list_user_functions(job):
        yield job.document.place((*key, "file")), dot_key((*key, "file")), os.path.abspath(job.folder / part.file)
    if own_python:
        yield "python", "", sys.prefix


def notes(work: ClusterJob) -> list[str]:
    """What the nodes need beside shared folders."""
    addresses = [text for _, text in work.job.data_paths() if is_on_hub(text)]
    return [
        f"data {text}: the nodes need a network, or a cache of the hub in a shared folder (HF_HOME), which "
        "`drivetrain fetch` fills"
        for text in addresses
    ]
