"""Keeps the commits of data on the Hugging Face hub for a run that goes on: its branch can have moved since it began."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drivetrain.job import Job
from drivetrain.job.hub_address import HubAddress, parse
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.supervisor import run_folder
from drivetrain.system.console import say
from drivetrain.system.run_records import read_mapping


def keep_revisions(runs: Path, job: Job, extended: Path | None, *, new: bool) -> list[str]:
    """List `key.path=value` for data at the commits of the run that a command resumes or extends, and print them.

    Args:
        runs: parent of the run folders.
        job: the present spec, at the present commits.
        extended: the run that is extended, if one is.
        new: whether an unfinished run is left alone.
    """
    unfinished = None if new or not runs.is_dir() else run_folder.find_unfinished(runs, job.name)
    run = unfinished or extended
    assignments = list(_assign_commits(run, job)) if run else []
    if assignments:
        say(f"data: {run} continues with the commit that it began with: {', '.join(assignments)}")
    return assignments


def _assign_commits(run: Path, job: Job) -> Iterator[str]:
    """Yield `key.path=value` for data that the spec names by a branch, and that a run has at another commit."""
    addresses = _read_addresses(run)
    for key, text in job.data_paths():
        block = job.document.data.get(key[0])
        in_spec = parse(str(block.get(key[-1]))) if isinstance(block, dict) else None
        current, at_begin = parse(text), addresses.get(key[-1])
        if not (in_spec and current and at_begin) or in_spec.is_fixed:
            continue
        if current.name == at_begin.name and current.revision != at_begin.revision:
            yield f"{'.'.join(key)}={in_spec.at(at_begin.revision)}"


def _read_addresses(run: Path) -> dict[str, HubAddress]:
    """The data of a run on the hub, by key of `data:`; none if its spec cannot be read, which is reported elsewhere."""
    data = read_mapping(read_stored_spec(run).data, "data")
    texts = {key: text for key, text in data.items() if isinstance(text, str)}
    return {key: address for key, text in texts.items() if (address := parse(text)) and address.is_fixed}
