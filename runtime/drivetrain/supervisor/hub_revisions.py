"""Keeps the commits of data on the Hugging Face hub for a run that goes on: its branch can have moved since it began."""

from __future__ import annotations

from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job.hub_address import HubAddress, parse
from drivetrain.job_spec import yaml_file
from drivetrain.supervisor import run_folder
from drivetrain.system.console import say
from drivetrain.system.run_files import JOB_FILE, RunFiles


def keep_revisions(runs: Path, job: Job, extended: Path | None, *, new: bool) -> list[str]:
    """What `assignments` gives for the run that a command resumes or extends; it is reported.

    Args:
        runs: parent of the run folders.
        job: the present spec, at the present commits.
        extended: the run that is extended, if one is.
        new: whether an unfinished run is left alone.
    """
    unfinished = None if new or not runs.is_dir() else run_folder.find_unfinished(runs, job.name)
    run = unfinished or extended
    fixed = assignments(run, job) if run else []
    if fixed:
        say(f"data: {run} continues with the commit that it began with: {', '.join(fixed)}")
    return fixed


def assignments(run: Path, job: Job) -> list[str]:
    """`key.path=value` for data that the spec names by a branch, and that a run has at another commit.

    Args:
        run: an unfinished run, or one that is extended.
        job: the present spec, at the present commits.
    """
    before = _read_addresses(run)
    fixed = []
    for key, text in job.data_paths():
        written = _read_value(job, key)
        now, stored, address = parse(text), before.get(key[-1]), parse(written) if isinstance(written, str) else None
        if (
            now
            and stored
            and address
            and not address.is_fixed
            and now.name == stored.name
            and now.revision != stored.revision
        ):
            fixed.append(f"{'.'.join(key)}={address.at(stored.revision)}")
    return fixed


def _read_value(job: Job, key: tuple[str, ...]) -> object:
    data = job.document.data.get(key[0])
    return data.get(key[-1]) if isinstance(data, dict) else None


def _read_addresses(run: Path) -> dict[str, HubAddress]:
    """The data of a run on the hub, by key of `data:`; none if its spec cannot be read, which is reported elsewhere."""
    try:
        data = yaml_file.parse(RunFiles(run).read_bytes(JOB_FILE), JOB_FILE).data.get("data")
    except (OSError, SpecError):
        return {}
    texts = {key: text for key, text in data.items() if isinstance(text, str)} if isinstance(data, dict) else {}
    return {key: address for key, text in texts.items() if (address := parse(text)) and address.is_fixed}
