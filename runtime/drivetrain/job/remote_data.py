"""Data that a job reads from an object store or a web server: the keys that name an address, and checks of it."""

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
"""The scheme of an address, at least two letters: one letter is a drive of Windows."""


def list_remote_paths(job: Job) -> list[tuple[tuple[str, ...], str]]:
    """List the data and the weights of a job that are in a store, with their keys."""
    return [(key, text) for key, text in (*job.data_paths(), *job.model_paths()) if is_remote(text)]


def list_schemes(job: Job) -> list[str]:
    """List the schemes of the stores that a run reads and writes."""
    copy_address = [job.checkpoint.copy_to] if job.checkpoint.copy_to else []
    return sorted({parse(text).scheme for text in (*copy_address, *(text for _, text in list_remote_paths(job)))})


def list_local_paths(job: Job) -> list[tuple[tuple[str, ...], str]]:
    """List the data of a job that is elsewhere, with its keys."""
    return [(key, text) for key, text in job.data_paths() if not is_remote(text)]


def list_readable_paths(job: Job) -> list[tuple[tuple[str, ...], str]]:
    """List the keys and paths of a job's data, except data in a store that has no copy here."""
    absent = job.list_unfetched()
    return [(key, text) for key, text in job.data_paths() if not is_remote(text) or (key, text) not in absent]


def find_problems(job: Job) -> Iterator[Problem]:
    """List the addresses that cannot be read, also texts that only look like addresses."""
    for key, text in list_local_paths(job):
        if _LIKE_ADDRESS.match(text) and not is_on_hub(text) and not Path(job.resolve(text)).exists():
            yield job.problem(
                key,
                f"is {format_value(text)}, which is no address of a store",
                POSSIBLE,
                "correct the address, or name a path",
            )
    for key, text in list_remote_paths(job):
        try:
            parse(text)
        except BadAddress as error:
            yield job.problem(key, error.given, error.possible, error.action)
