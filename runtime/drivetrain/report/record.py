"""Reads the files of a run folder. Files may be missing, or truncated in the middle of a line by a kill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from drivetrain.errors import CheckpointError, SpecError
from drivetrain.hardware.facts import Hardware, from_json
from drivetrain.job_spec.yaml_file import parse
from drivetrain.plan.plan import Decision, Plan
from drivetrain.report.log_series import Series, collect_series
from drivetrain.system.files import parse_json, parse_row
from drivetrain.system.printable import printable, printable_text
from drivetrain.system.run_files import (
    HARDWARE_FILE,
    JOB_FILE,
    METRICS_FILE,
    PLAN_FILE,
    RESULT_FILE,
    STATE_FILE,
    RunFiles,
    read_lines,
)
from drivetrain.tracking import rank_record
from drivetrain.tracking.live.run_reader import PROGRESS_FILE
from drivetrain.tracking.rank_record import RankRecord

_FINAL_FILE = RESULT_FILE
"""Written at the end of training; in a stopped or running run it does not count as missing."""
_CONSEQUENCES = {
    JOB_FILE: "the job file cannot be shown",
    HARDWARE_FILE: "the machine cannot be shown",
    PLAN_FILE: "the plan and the effective settings cannot be shown",
    METRICS_FILE: "there are no curves",
    "telemetry.jsonl": "throughput and memory over time cannot be shown",
    RESULT_FILE: "the best value and the peaks come from the logs; there is no confusion matrix",
    STATE_FILE: "how the run ended is unknown",
    "events.jsonl": "some events cannot be shown",
    "operators.json": "the slowest operators cannot be shown",
    PROGRESS_FILE: "the metric that chooses the weights is that of the job",
    "mistakes.json": "the most confident mistakes cannot be shown",
    "baselines.json": "the simple models beside the network cannot be shown",
    "provenance.json": "from which bytes the run was made cannot be shown",
    "extension.json": "the run that this one continues cannot be shown",
}


@dataclass(frozen=True)
class MissingRecord:
    """A missing or damaged file: what is wrong, and what the report lacks because of it."""

    file: str
    problem: str
    consequence: str


@dataclass
class Record:
    """Everything that could be read of one run."""

    name: str
    text: str = ""
    """The resolved spec as YAML."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    hardware: Hardware | None = None
    plan: Plan | None = None
    metrics: dict[str, Series] = field(default_factory=dict)
    """By step."""
    epoch_steps: float | None = None
    """Optimizer steps of an epoch; None for a run of less than two."""
    telemetry: dict[str, Series] = field(default_factory=dict)
    """By seconds since the start."""
    result: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    extension: Mapping[str, Any] = field(default_factory=dict)
    """The finished run that this one continues, as in extension.json."""
    events: list[Mapping[str, Any]] = field(default_factory=list)
    trace: Mapping[str, Any] = field(default_factory=dict)
    """The operators of the profiled steps."""
    watched_metric: str = ""
    """The metric that chooses the weights of this run, as it said when it began; empty if it never did."""
    mistakes: Mapping[str, Any] = field(default_factory=dict)
    """The worst mistakes by head."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Digests of what a finished run was made from."""
    baselines: Mapping[str, Any] = field(default_factory=dict)
    """The simple models beside the network, as in baselines.json."""
    ranks: tuple[RankRecord, ...] = ()
    """What each process did, if there were several."""
    gaps: list[MissingRecord] = field(default_factory=list)


def read(run: Path) -> Record:
    """Read a run folder.

    Raises:
        CheckpointError: if there is no such folder, or none of a run's files in it.
    """
    if not any((run / file).is_file() for file in _CONSEQUENCES):
        problem = "it contains no file of a run" if run.is_dir() else "there is no such folder"
        raise CheckpointError(
            f"{run}: {problem}",
            "a run folder contains " + ", ".join(_CONSEQUENCES),
            "use a folder that `drivetrain train` created, below runs/",
        )
    record = Record(printable(run.resolve().name))
    _read_spec(record, run)
    _read_hardware(record, run)
    _read_plan(record, run)
    record.metrics = collect_series(_read_rows(record, run / METRICS_FILE), "step")
    record.epoch_steps = _count_epoch_steps(record.metrics.pop("epoch", None))
    record.telemetry = collect_series(_read_rows(record, run / "telemetry.jsonl"), "seconds", continues=True)
    record.state = _read_object(record, run / STATE_FILE)
    if (run / _FINAL_FILE).exists() or record.state.get("status", "done") == "done":
        record.result = _read_object(record, run / _FINAL_FILE)
    if (run / "events.jsonl").exists():  # a run without events has no such file
        record.events = list(_read_rows(record, run / "events.jsonl"))
    record.extension = _read_optional(record, run / "extension.json")
    record.trace = _read_optional(record, run / "operators.json")
    record.mistakes = _read_optional(record, run / "mistakes.json")
    record.baselines = _read_optional(record, run / "baselines.json")
    record.provenance = _read_optional(record, run / "provenance.json")
    record.watched_metric = printable(str(_read_optional(record, run / PROGRESS_FILE).get("best") or ""))
    record.ranks = rank_record.read_records(run)
    return record


def _add_gap(record: Record, path: Path, wrong: str, consequence: str | None = None) -> None:
    record.gaps.append(MissingRecord(path.name, wrong, consequence or _CONSEQUENCES[path.name]))


def _read_text(record: Record, path: Path) -> str | None:
    try:
        return RunFiles(path.parent).read_text(path.name, errors="replace")
    except FileNotFoundError:
        _add_gap(record, path, "missing")
    except OSError as error:
        _add_gap(record, path, f"cannot be read: {error.strerror}")
    return None


def _count_epoch_steps(epochs: Series | None) -> float | None:
    """Optimizer steps of an epoch, from the number of the epoch at each step."""
    if epochs is None or not epochs or epochs.ys[-1] < 2:
        return None
    # The last epoch may have been cut short, so the one before it counts.
    ends = [step for step, epoch in zip(epochs.xs, epochs.ys, strict=True) if epoch < epochs.ys[-1]]
    return ends[-1] / epochs.ys[-1] if ends else None


def _read_object(record: Record, path: Path) -> dict[str, Any]:
    text = _read_text(record, path)
    if text is None:
        return {}
    try:
        data = parse_json(text)
    except ValueError:
        data = None
    if isinstance(data, dict):
        return data
    _add_gap(record, path, "empty" if not text.strip() else "cut or damaged")
    return {}


def _read_optional(record: Record, path: Path) -> dict[str, Any]:
    return _read_object(record, path) if path.exists() else {}


def _read_rows(record: Record, path: Path) -> Iterator[dict[str, object]]:
    """The rows of a log, one at a time, since the log of a long run may not fit into memory."""
    bad_lines: list[int] = []
    line = 0
    try:
        with RunFiles(path.parent).open(path.name, errors="replace") as file:
            for line, text in enumerate(read_lines(file), start=1):
                row = parse_row(text)
                if row is None:
                    bad_lines.append(line)
                else:
                    yield row
    except FileNotFoundError:
        _add_gap(record, path, "missing")
    except OSError as error:
        _add_gap(record, path, f"cannot be read: {error.strerror}")
    else:
        _report_damage(record, path, bad_lines, line)


def _report_damage(record: Record, path: Path, bad_lines: list[int], line_count: int) -> None:
    if not line_count:
        _add_gap(record, path, "empty")
    elif bad_lines == [line_count]:
        _add_gap(record, path, f"the last line ({line_count}) is incomplete", "all lines before it are shown")
    elif bad_lines:
        problem = f"{len(bad_lines)} of {line_count} lines cannot be read, the first is line {bad_lines[0]}"
        _add_gap(record, path, problem, "they are skipped")


def _read_spec(record: Record, run: Path) -> None:
    record.text = printable_text(_read_text(record, run / JOB_FILE) or "")
    if record.text:
        try:
            record.spec = parse(record.text, JOB_FILE).data
        except SpecError as error:
            problem = f"damaged: {str(error).splitlines()[0]}"
            _add_gap(record, run / JOB_FILE, problem, "it is shown unchanged, but name and task are unknown")


def _read_hardware(record: Record, run: Path) -> None:
    path = run / HARDWARE_FILE
    data = _read_object(record, path)
    if data:
        try:
            record.hardware = from_json(data)
        except (SpecError, TypeError, AttributeError, ValueError) as error:
            _add_gap(record, path, f"not a description of a machine: {str(error).splitlines()[0]}")


def _read_plan(record: Record, run: Path) -> None:
    """The plan, also of another version: rows of unknown optimizations are kept."""
    path = run / PLAN_FILE
    data = _read_object(record, path)
    if not data:
        return
    plan_fields, row = {f.name for f in fields(Plan)}, {f.name for f in fields(Decision)}
    try:
        decisions = tuple(Decision(**{k: v for k, v in d.items() if k in row}) for d in data["decisions"])
        effective = data.get("seen")
        plan = Plan(
            **{k: v for k, v in data.items() if k in plan_fields}
            | {
                "decisions": decisions,
                "notes": tuple(data.get("notes") or ()),
                "seen": effective if isinstance(effective, dict) else {},
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        _add_gap(record, path, f"not a plan: {type(error).__name__} {error}")
    else:
        record.plan = plan
