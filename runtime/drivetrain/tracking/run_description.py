"""Description of a run on a tracking server, next to its curves: name, parameters, tags and files, read from its folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.system import run_files
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import RunResult, RunState, read_mapping, read_objects
from drivetrain.system.version import VERSION
from drivetrain.tracking.tracker import RunDescription

SENT_FILES = (
    *(run_files.JOB_FILE, run_files.PLAN_FILE, run_files.HARDWARE_FILE, run_files.RESULT_FILE),
    *(run_files.INPUTS_FILE, run_files.EVENTS_FILE, run_files.STATE_FILE),
    *run_files.REPORT_FILES,
)
"""Files of the folder that the server gets at the end; the weights stay there."""


def flatten(value: object, path: str = "") -> dict[str, object]:
    """Convert nested data to one mapping with dotted keys."""
    if not isinstance(value, Mapping):
        return {path: value}
    flattened: dict[str, object] = {}
    for key, child in value.items():
        flattened |= flatten(child, f"{path}.{key}" if path else str(key))
    return flattened


def describe_run(run: Path) -> RunDescription:
    """Return name, key, parameters and tags of a run."""
    values = {key: value for key, value in flatten(read_stored_spec(run).data).items() if value is not None}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return RunDescription(run.name, RunState.read(run).key, run, texts, collect_tags(run))


def read_contents(run: Path) -> dict[str, str]:
    """Return the texts of the files that the server gets at the end."""
    contents: dict[str, str] = {}
    for name in SENT_FILES:
        with contextlib.suppress(OSError):  # the run has no such file
            contents[name] = RunFiles(run).read_bytes(name).decode("utf-8", "replace")
    return contents


def collect_tags(run: Path) -> dict[str, str]:
    """Describe the commit and the plan of a run and its best value, as far as they are known yet; files have the rest."""
    files = RunFiles(run)
    tags = {"drivetrain.version": VERSION, "commit": next(iter(RunState.read(run).commits), "")}
    tags["hardware.cpu"] = str(read_mapping(files.read_object(run_files.HARDWARE_FILE), "cpu").get("model", ""))
    best = RunResult.read(run).best
    if best:
        tags["best"] = f"{best.metric} {best.value:.6g} at step {best.step}"
    for row in read_objects(files.read_object(run_files.PLAN_FILE), "decisions"):
        tags[f"plan.{row.get('name')}"] = f"{row.get('value')} ({row.get('source')}: {row.get('reason')})"
    return {name: text for name, text in tags.items() if text}
