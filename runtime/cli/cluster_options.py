"""The options of `drivetrain launch --on ENGINE`, which starts a job on a cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

from runtime.cli import contained
from runtime.errors import SpecError

ENGINES = ("slurm", "k8s", "skypilot", "nodes")
"""What jobs can be launched on."""
_OPTIONS = ("nodes", "per_node", "site", "output", "submit")


def add(made: argparse.ArgumentParser) -> None:
    """Add the options to the parser of `launch`."""
    made.add_argument("--on", choices=ENGINES, help="train on a cluster: write the file that its engine takes")
    made.add_argument(
        "--nodes", type=int, metavar="N", help="with --on: number of machines (default: limits.nodes, or 1)"
    )
    made.add_argument(
        "--per-node",
        type=int,
        metavar="M",
        help="with --on: processes on each machine, one for each GPU (default: limits.processes, or 1)",
    )
    made.add_argument("--site", type=Path, metavar="FILE", help="with --on: what belongs to the cluster (YAML)")
    made.add_argument(
        "--output", type=Path, metavar="FILE", help="with --on: file to write (default: named after the job)"
    )
    made.add_argument("--submit", action="store_true", help="with --on: submit the file, too")


def launch(given: argparse.Namespace) -> int:
    """Write the file for the engine.

    Raises:
        DrivetrainError: if options, job or site do not fit.
    """
    from runtime.launch.clusters import cluster_launch
    from runtime.launch.clusters.cluster_job import ClusterRequest

    for option, why in (
        ("new", "every restart of the job would begin a new run; name another: --set name=NAME"),
        ("image", "the image of a cluster stands in its site file"),
        ("network", "networks belong to the cluster"),
    ):
        if getattr(given, option):
            raise SpecError(f"--{option} with --on {given.on}", why, f"remove --{option}")
    return cluster_launch.launch(
        ClusterRequest(
            given.on,
            given.job,
            tuple(given.set),
            given.device,
            contained.flags(given),
            given.extend,
            given.nodes,
            given.per_node,
            given.site,
            given.output,
            given.submit,
        )
    )


def check_absent(given: argparse.Namespace) -> None:
    """Refuse options of clusters where no cluster is named.

    Raises:
        SpecError: if there is one.
    """
    for option in _OPTIONS:
        if getattr(given, option):
            name = f"--{option.replace('_', '-')}"
            raise SpecError(
                f"{name} without --on", f"--on ENGINE: {', '.join(ENGINES)}", f"add --on ENGINE, or remove {name}"
            )
