"""The options of `drivetrain launch --on ENGINE`, which starts a job on a cluster."""

from __future__ import annotations

import argparse

from drivetrain.cli.command_parser import CommandParser
from drivetrain.errors import SpecError

ENGINES = ("slurm", "k8s", "skypilot")
"""What jobs can be launched on."""
_CLUSTER_OPTIONS = ("nodes", "per_node", "site", "output", "submit")
"""Options of `launch` that mean nothing without --on."""
_CONTAINER_OPTIONS = {
    "new": "every restart of the job would begin a new run; name another: --set name=NAME",
    "image": "the image of a cluster stands in its site file",
    "network": "networks belong to the cluster",
}
"""Those that mean nothing with it, and what is possible there."""


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


def check(options: argparse.Namespace) -> None:
    """Refuse (SpecError) options of clusters where no cluster is named, and options of containers where one is."""
    for option, possible in _CONTAINER_OPTIONS.items() if options.on else ():
        if getattr(options, option):
            raise SpecError(f"--{option} with --on {options.on}", possible, f"remove --{option}")
    for option in _CLUSTER_OPTIONS if not options.on else ():
        if getattr(options, option):
            name = f"--{option.replace('_', '-')}"
            raise SpecError(
                f"{name} without --on", f"--on ENGINE: {', '.join(ENGINES)}", f"add --on ENGINE, or remove {name}"
            )
