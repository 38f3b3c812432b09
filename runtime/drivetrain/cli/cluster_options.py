"""The options about several machines: of `drivetrain launch --on ENGINE`, which starts a job on a cluster, and of `plan`."""

from __future__ import annotations

import argparse

from drivetrain.cli import container_fallback
from drivetrain.cli.command_parser import CommandParser
from drivetrain.cli.request import make_request
from drivetrain.errors import SpecError

ENGINES = ("slurm", "k8s", "skypilot")
"""What jobs can be launched on."""
_CLUSTER_OPTIONS = ("nodes", "per_node", "site", "output", "submit")
"""Options of `launch` that mean nothing without --on."""


def add(command: CommandParser) -> None:
    """Add the options to the parser of `launch`."""
    command.add_argument("--on", choices=ENGINES, help="train on a cluster: write the file that its engine takes")
    command.add_argument(
        "--nodes", type=int, metavar="N", help="with --on: number of machines (default: limits.nodes, or 1)"
    )
    command.add_argument(
        "--per-node",
        type=int,
        metavar="M",
        help="with --on: processes on each machine, one for each GPU (default: limits.processes, or 1)",
    )
    command.add_path("--site", "FILE", "with --on: what belongs to the cluster (YAML)")
    command.add_path("--output", "FILE", "with --on: file to write (default: named after the job)")
    command.add_switch("--submit", "with --on: submit the file, too")


def launch(options: argparse.Namespace) -> int:
    """Write the file for the engine; raises DrivetrainError if options, job or site do not fit."""
    from drivetrain.launch.clusters import cluster_launch
    from drivetrain.launch.clusters.cluster_job import ClusterRequest

    for option, possible in (
        ("new", "every restart of the job would begin a new run; name another: --set name=NAME"),
        ("image", "the image of a cluster stands in its site file"),
        ("network", "networks belong to the cluster"),
    ):
        if getattr(options, option):
            raise SpecError(f"--{option} with --on {options.on}", possible, f"remove --{option}")
    flags = container_fallback.list_flags(options)
    return cluster_launch.launch(make_request(ClusterRequest, options, flags=flags))


def check_absent(options: argparse.Namespace) -> None:
    """Refuse options of clusters where no cluster is named; raises SpecError if there is one."""
    for option in _CLUSTER_OPTIONS:
        if getattr(options, option):
            name = f"--{option.replace('_', '-')}"
            raise SpecError(
                f"{name} without --on", f"--on ENGINE: {', '.join(ENGINES)}", f"add --on ENGINE, or remove {name}"
            )
