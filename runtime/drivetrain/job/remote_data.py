"""Data that a job reads from an object store or a web server: lists the keys with addresses, and checks them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from drivetrain.errors import Problem
from drivetrain.job.formatting import format_value
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.job import Job
from drivetrain.storage.remote_address import POSSIBLE, BadAddress, is_remote, parse

_LIKE_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""Scheme of an address: at least two letters, because one letter is a drive of Windows."""


def list_remote_paths(job: Job) -> list[tuple[tuple[str, ...], str]]:
    """List the keys and addresses of a job's data and weights in stores."""
    return [(key, text) for key, text in (*job.data_paths(), *job.model_paths()) if is_remote(text)]


def list_schemes(job: Job) -> list[str]:
    """List the schemes of the stores that a run reads and writes."""
    addresses = [text for _, text in list_remote_paths(job)]
    if job.checkpoint.copy_to:
        addresses.append(job.checkpoint.copy_to)
    return sorted({parse(address).scheme for address in addresses})


def list_local_paths(job: Job) -> list[tuple[tuple[str, ...], str]]:
    """List the keys and paths of a job's data that is not in a store."""
    return [(key, text) for key, text in job.data_paths() if not is_remote(text)]


def list_readable_paths(job: Job) -> list[tuple[tuple[str, ...], str]]:
    """List the keys and paths of a job's data, except data in a store without a local copy."""
    absent = job.list_unfetched()
    return [(key, text) for key, text in job.data_paths() if not is_remote(text) or (key, text) not in absent]


def find_problems(job: Job) -> Iterator[Problem]:
    """Yield a problem for each address that is not valid, also for a text that only looks like an address."""
    for key, text in list_local_paths(job):
        if _LIKE_ADDRESS.match(text) and not is_on_hub(text) and not Path(job.resolve(text)).exists():
            yield job.problem(
                key,
                f"is {format_value(text)}, which is not an address of a store",
                POSSIBLE,
                "correct the address, or name a path",
            )
    for key, text in list_remote_paths(job):
        try:
            parse(text)
        except BadAddress as error:
            yield job.problem(key, error.given, error.possible, error.action)
