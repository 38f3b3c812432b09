"""What a tracking server shows of a run beside its curves: parameters, tags and files, from the files of its folder."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from drivetrain.errors import SpecError
from drivetrain.job_spec.yaml_file import parse
from drivetrain.system.run_files import HARDWARE_FILE, JOB_FILE, PLAN_FILE, RESULT_FILE, STATE_FILE, RunFiles
from drivetrain.system.version import VERSION
from drivetrain.tracking.tracker import RunDescription

RECORDS = (JOB_FILE, PLAN_FILE, HARDWARE_FILE, RESULT_FILE, "data.json", "events.jsonl", "baselines.json")
REPORTS = ("provenance.json", "model-card.md", "report.html", "report.md", "report.json")


def describe_run(run: Path) -> RunDescription:
    """Its name, start, parameters and tags."""
    started = read_moment(run, "started") or time.time_ns() // 1_000_000
    return RunDescription(run.name, started, dict(_flatten(read_spec(run))), collect_tags(run))


def read_spec(run: Path) -> Mapping[str, Any]:
    """The job file of a run; empty if there is none."""
    try:
        return parse(RunFiles(run).read_text(JOB_FILE), JOB_FILE).data
    except (OSError, ValueError, SpecError):
        return {}


def read_moment(run: Path, name: str) -> int | None:
    """When a run was `started` or `ended`, in milliseconds since 1970; None if it was not."""
    try:
        return int(datetime.fromisoformat(str(RunFiles(run).read_object(STATE_FILE).get(name))).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def read_contents(run: Path) -> dict[str, bytes]:
    """The files that are sent; the weights stay in the folder."""
    contents: dict[str, bytes] = {}
    for name in RECORDS + REPORTS:
        with contextlib.suppress(OSError):  # the run has no such file
            contents[name] = RunFiles(run).read_bytes(name)
    return contents


def collect_tags(run: Path) -> dict[str, str]:
    """What a run was made from, its plan and its best value, as far as they are known yet."""
    files = RunFiles(run)
    commits = files.read_object(STATE_FILE).get("commits")
    provenance = files.read_object("provenance.json")
    image = _get_object(provenance, "image")
    origins = {
        "commit": commits[0] if isinstance(commits, list) and commits else None,
        "image": image.get("id") or image.get("name"),
        **{key: provenance.get(key) for key in ("spec", "plan", "model")},
        **_get_object(provenance, "data"),
    }
    tags = {f"made_from.{key}": str(value) for key, value in origins.items() if value}
    tags["drivetrain.version"] = VERSION
    tags["hardware.cpu"] = str(_get_object(files.read_object(HARDWARE_FILE), "cpu").get("model", ""))
    best = _get_object(files.read_object(RESULT_FILE), "best")
    if isinstance(best.get("value"), int | float) and math.isfinite(best["value"]):
        tags["best"] = f"{best.get('metric')} {best['value']:.6g} at step {best.get('step')}"
    decisions = files.read_object(PLAN_FILE).get("decisions")
    for row in decisions if isinstance(decisions, list) else []:
        if isinstance(row, dict):
            tags[f"plan.{row.get('name')}"] = f"{row.get('value')} ({row.get('source')}: {row.get('reason')})"
    return tags


def _get_object(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object in a record; empty if there is none, as in a folder that somebody else wrote."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def _flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every value of the spec by its dotted key, without those that are not set."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flatten(item, f"{prefix}{key}.")
        elif item is not None:
            yield f"{prefix}{key}", item if isinstance(item, str) else json.dumps(item)
