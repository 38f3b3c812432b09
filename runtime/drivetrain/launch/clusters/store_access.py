"""How the processes of a cluster get at the stores of a job: by names of variables and secrets, never by their values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from drivetrain.errors import SpecError
from drivetrain.job import remote_data
from drivetrain.launch.clusters.cluster_job import ClusterJob
from drivetrain.storage import store_variables


def names(work: ClusterJob, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The variables of the job's stores that are set here."""
    return [name for one in remote_data.list_schemes(work.job) for name in store_variables.read_known(one, environ)]


def lacking(work: ClusterJob, variables: Iterable[str]) -> list[str]:
    """Schemes (s3, gs, az) of the job's stores for which none of `variables` is a credential."""
    names = tuple(variables)
    return [
        scheme
        for scheme in remote_data.list_schemes(work.job)
        if scheme in store_variables.PREFIXES
        and not any(name.startswith(store_variables.PREFIXES[scheme]) for name in names)
    ]


def missing(work: ClusterJob, variables: Iterable[str]) -> list[str]:
    """Lines for the user about the stores of the job of which no variable is given."""
    return [
        f"no {store_variables.PREFIXES[scheme]}... variable is set here: for {scheme}:// the nodes need a role"
        for scheme in lacking(work, variables)
    ]


def refuse_files(work: ClusterJob, engine: str, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse variables that name a file of this machine, for an engine that hands over values only.

    Raises:
        SpecError: if one is set.
    """
    for name in names(work, environ):
        if name in store_variables.FILES:
            raise SpecError(
                f"{name} names a file of this machine, which the nodes of {engine} do not have",
                "variables that hold the credential itself, or the role of the nodes",
                f"unset {name}, and export such variables or give the nodes a role",
            )
