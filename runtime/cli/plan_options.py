"""The options of `drivetrain plan` about several machines."""

from __future__ import annotations

import argparse


def add(made: argparse.ArgumentParser) -> None:
    """Add the options to the parser of `plan`."""
    made.add_argument("--nodes", type=int, metavar="N", help="say what N machines would cost and gain")
    made.add_argument("--per-node", type=int, metavar="M", help="with --nodes: processes on each (default: 1)")
    made.add_argument("--link", metavar="RATE", help="with --nodes: what each node can send, such as 500mbit or 10gbit")
