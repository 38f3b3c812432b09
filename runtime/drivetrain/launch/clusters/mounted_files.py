"""Refuses a job whose data a container of the cluster would not find: all of it has to be below a mounted volume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from drivetrain.errors import Problem, SpecError
from drivetrain.job import custom as custom_job
from drivetrain.job import dot_key
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.remote_data import list_local_paths
from drivetrain.launch.clusters.cluster_job import ClusterJob
from drivetrain.storage.remote_address import is_remote


def check(work: ClusterJob, runs: str, volumes: Sequence[str], where: str) -> None:
    """Refuse paths that no volume holds. What is below a volume is not looked at: it may not be mounted here.

    Args:
        work: the job.
        runs: the folder for runs, in the container.
        volumes: where volumes are mounted.
        where: the key of the site file that lists them.

    Raises:
        SpecError: with every such path.
    """
    possible = f"below {', '.join(volumes)}" if volumes else f"below a volume; {where} lists none"
    action = f"write its path in the container, below a volume of {where}"
    problems = [
        Problem(location, key, f"{path} is below no volume that the container has", possible, action)
        for location, key, path in ((where, "runs", runs), *_list_paths(work))
        if not any(PurePosixPath(path).is_relative_to(volume) for volume in volumes) or ".." in path.split("/")
    ]
    if problems:
        raise SpecError(problems)


def _list_paths(work: ClusterJob) -> Iterator[tuple[str, str, str]]:
    """The paths of the job: place, key, path."""
    job = work.job
    for key, text in (*list_local_paths(job), *(named for named in job.model_paths() if not is_remote(named[1]))):
        network = key[-1] in ("name", "pretrained") and not text.startswith(("/", ".", "~"))
        if not is_on_hub(text) and not network:
            yield job.document.place(key), dot_key(key), text
    for key, part, _ in custom_job.list_user_functions(job):
        yield job.document.place((*key, "file")), dot_key((*key, "file")), part.file
