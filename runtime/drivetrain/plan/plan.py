"""The plan: every decision with value, source, reason, effect and evidence, made once before the first step.

The first of these decides: a value learned from a failure, --plain, the job, a stored plan (--plan), a measurement, the
rule of the optimization. A requested value that is not possible is an error; a preferred one gives its reason in the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from drivetrain import optimizations
from drivetrain.errors import Problem, SpecError
from drivetrain.hardware import gpu_selection, image_selection
from drivetrain.hardware.facts import EMULATION, NO_MPS, Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.optimizations import Choice, Optimization, Value
from drivetrain.plan.chip_profiles import find_profile
from drivetrain.plan.evidence import Measurement
from drivetrain.system.files import open_file, parse_json
from drivetrain.system.run_files import PLAN_FILE, RunFiles, damaged_error
from drivetrain.system.units import format_bytes, parse_bytes

CHOICE = "choice"
"""Source of decisions by a rule, which a measurement may change."""
LEARNED = ("memory", "crash")
"""Sources of decisions learned from a crash or from running out of memory; they override everything, even the job."""


@dataclass(frozen=True)
class Decision:
    """One row of the plan."""

    name: str
    value: Value
    source: str
    """job, measured, choice, plain (--plain), file (--plan), memory (after running out of it), or crash."""
    reason: str
    effect: str
    evidence: str | None = None
    provisional: bool = False
    """True until model and data are known and the value is measured."""

    def learn(self, value: Value, source: str, reason: str) -> Decision:
        """Return the decision with a value learned from a failure; evidence for the old value is dropped."""
        return replace(self, value=value, source=source, reason=reason, evidence=None, provisional=False)


@dataclass(frozen=True)
class Plan:
    """All decisions for one job on one machine."""

    decisions: tuple[Decision, ...]
    image: str | None
    image_reason: str
    profile: str
    notes: tuple[str, ...] = ()
    """Notes for the user: limits that differ from the request, conversions, a GPU that cannot be used."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """Effective values, read back by the trainer after assembly."""

    def decision(self, name: str) -> Decision:
        """Return the decision of this name."""
        return next(decision for decision in self.decisions if decision.name == name)

    def value(self, name: str) -> Value:
        """Return the value decided for one optimization."""
        return self.decision(name).value

    def values(self) -> dict[str, Value]:
        """Return all values by name, which `resolve` can replay."""
        return {row.name: row.value for row in self.decisions}

    @property
    def is_plain(self) -> bool:
        """Return whether every setting is off, except values learned from a failure."""
        return all(row.source in ("plain", *LEARNED) for row in self.decisions)

    def list_enabled(self) -> tuple[Decision, ...]:
        """List the decisions that differ from plain PyTorch, in the order of application."""
        off_values = optimizations.off_values()
        return tuple(row for row in self.decisions if row.name in off_values and row.value != off_values[row.name])

    def with_rows(self, rows: Iterable[Decision]) -> Plan:
        """Return the plan with its rows of the same names replaced."""
        replacements = {row.name: row for row in rows}
        return replace(self, decisions=tuple(replacements.get(row.name, row) for row in self.decisions))

    def with_values(self, values: Mapping[str, Value]) -> Plan:
        """Return the plan with other values but unchanged reasons: for a trial, not for a record."""
        return self.with_rows(replace(row, value=values[row.name]) for row in self.decisions if row.name in values)

    def with_only(self, names: Collection[str]) -> Plan:
        """Return the plan with everything off except these."""
        off_values = optimizations.off_values()
        return self.with_values({name: value for name, value in off_values.items() if name not in names})

    def environment(self, hardware: Hardware) -> dict[str, str]:
        """Return the environment variables that must be set before the trainer starts; preloads are joined."""
        return gpu_selection.build_environment(hardware) | optimizations.environment(hardware, self.values())

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values; `load` reads them back."""
        return asdict(self)


def resolve(
    job: Job,
    hardware: Hardware,
    workload: Workload | None = None,
    *,
    plain: bool = False,
    replay: Mapping[str, Value] | None = None,
    measured: Mapping[str, Measurement] | None = None,
) -> Plan:
    """Make all decisions.

    Args:
        job: the user's request.
        hardware: the usable machine.
        workload: properties of model and data; None before they are known.
        plain: turn everything off, as a baseline.
        replay: values of a stored plan, in place of our choices.
        measured: measurements for this network on this machine.

    Raises:
        SpecError: with every requested value that is not possible.
    """
    decisions, problems = [], []
    for optimization in optimizations.every():
        requested = job.optimize.get(optimization.name, "auto")
        if requested != "auto" and not plain:
            reason = optimization.refuse(job, hardware, workload, requested)
            if reason:
                problems.append(_make_problem(job, hardware, workload, optimization, requested, reason))
                continue
        decisions.append(_decide(optimization, job, hardware, workload, plain, replay or {}, measured or {}, requested))
    if problems:
        raise SpecError(problems)
    selected_image = image_selection.choose_image(hardware)
    notes = tuple(_list_notes(job, hardware))
    return Plan(tuple(decisions), selected_image.word, selected_image.reason, find_profile(hardware), notes)


def _decide(
    optimization: Optimization,
    job: Job,
    hardware: Hardware,
    workload: Workload | None,
    plain: bool,
    replay: Mapping[str, Value],
    measured: Mapping[str, Measurement],
    requested: Value,
) -> Decision:
    def make_decision(value: Value, source: str, reason: str, evidence: str | None = None) -> Decision:
        # Fixed values and process settings do not depend on the workload.
        depends = optimization.stage > optimizations.Stage.PROCESS
        is_provisional = workload is None and source == CHOICE and depends
        effect = optimizations.Effect.EXACT if value == optimization.off else optimization.effect(workload)
        return Decision(optimization.name, value, source, reason, str(effect), evidence, is_provisional)

    if plain:
        return make_decision(optimization.off, "plain", "all optimizations are off (--plain)")
    if requested != "auto":
        return make_decision(requested, "job", "set in the job file")
    if optimization.name in replay:
        value = replay[optimization.name]
        obstacle = optimization.refuse(job, hardware, workload, value)
        if obstacle is None:
            return make_decision(value, "file", "from the stored plan (--plan)")
        choice = optimization.choose(job, hardware, workload)
        return make_decision(choice.value, CHOICE, f"the stored value {value} is not possible here: {obstacle}")
    measurement = measured.get(optimization.name)
    if measurement and optimization.refuse(job, hardware, workload, measurement.value) is None:
        return make_decision(measurement.value, "measured", f"measured on {measurement.date}", measurement.text)
    choice = optimization.choose(job, hardware, workload)
    return make_decision(choice.value, CHOICE, choice.reason)


def _list_notes(job: Job, hardware: Hardware) -> Iterator[str]:
    """Yield notes on limits that differ from the request, an unusable GPU, or an image for another machine."""
    limits, memory = job.limits, hardware.memory
    if hardware.gpu_trouble:
        yield f"gpu: {hardware.gpu_trouble}"
    if hardware.system == "Darwin":
        yield f"gpu: {NO_MPS}"
    if hardware.cpu.emulated:
        yield f"cpu: {EMULATION}"
    if hardware.gpu_note:
        yield f"gpu: {hardware.gpu_note}"
    if limits.gpu_memory is not None and hardware.gpu is None:
        yield f"limits.gpu_memory: {limits.gpu_memory} has no effect without a GPU"
    elif limits.gpu_memory is not None and hardware.gpu is not None:
        allowed_bytes = gpu_selection.count_allowed_bytes(hardware.gpu, limits.gpu_memory)
        yield f"limits.gpu_memory: tensors may use {format_bytes(allowed_bytes)} of {format_bytes(hardware.gpu.memory)}"
    if hardware.gpu is None and hardware.image in image_selection.BUILDS and job.limits.gpus != "none":
        yield f"image: {hardware.image} needs a GPU and sees none, so `train` will not start"
    cpus = hardware.cpu.quota or float(hardware.cpu.budget)
    if limits.cpus is not None and cpus > limits.cpus:
        yield f"limits.cpus: {limits.cpus:g} requested but not enforced; {cpus:g} CPUs are available"
    if limits.cpus is not None and cpus < limits.cpus:
        yield f"limits.cpus: {limits.cpus:g} requested, only {cpus:g} available"
    if limits.memory is not None:
        requested = parse_bytes(limits.memory)
        if memory.limit is None or memory.limit > requested:
            yield f"limits.memory: {limits.memory} requested but not enforced; {format_bytes(memory.limit or memory.host)} available"
        elif memory.limit < requested:
            yield f"limits.memory: {limits.memory} requested, only {format_bytes(memory.limit)} available"
    shm = hardware.storage.shm
    if limits.shm is not None and hardware.place != "host" and shm is not None and shm < parse_bytes(limits.shm):
        yield f"limits.shm: {limits.shm} requested, /dev/shm has {shm >> 20} MiB"


def _make_problem(
    job: Job, hardware: Hardware, workload: Workload | None, optimization: Optimization, requested: Value, reason: str
) -> Problem:
    default: Choice = optimization.choose(job, hardware, workload)
    path = ("optimize", optimization.name)
    return Problem(
        job.document.place(path),
        ".".join(path),
        f"is {format_value(requested)}, which is not possible here",
        reason,
        f"remove the key; the default here is {format_value(default.value)} ({default.reason})",
    )


def load(path: Path) -> Plan:
    """Read a plan that the user names; raises SpecError if the file is no plan."""
    try:
        with open_file(path) as file:
            return parse_plan(parse_json(file.read()), is_followed=True)
    except (OSError, ValueError) as error:
        description = error.strerror if isinstance(error, OSError) else error
        raise SpecError(
            f"--plan {path}: {description}", "a plan.json of a run, or the output of `plan --json`", "use such a file"
        ) from None


def read_plan(run: Path) -> Plan:
    """Read the plan in a run folder; raises CheckpointError if it has none that this version can follow."""
    data, problem = RunFiles(run).read_checked_object(PLAN_FILE)
    try:
        return parse_plan(data, is_followed=True)
    except ValueError as error:
        raise damaged_error(run / PLAN_FILE, problem or str(error)) from None


def parse_plan(data: Any, *, is_followed: bool = False) -> Plan:
    """Parse the content of a plan.json; names of another version are skipped.

    With `is_followed`, unknown optimizations are refused.

    Raises:
        ValueError: if it is no plan.
    """
    plan_keys, row_keys = ({f.name for f in fields(kind)} for kind in (Plan, Decision))
    try:
        rows = tuple(Decision(**{key: row[key] for key in row if key in row_keys}) for row in data["decisions"])
        plan = Plan(**{key: data[key] for key in data if key in plan_keys} | {"decisions": rows})
        plan = replace(plan, notes=tuple(plan.notes or ()), seen=plan.seen if isinstance(plan.seen, dict) else {})
        unknown = {row.name for row in rows} - {optimization.name for optimization in optimizations.every()}
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not a plan: {type(error).__name__} {error}") from None
    if unknown and is_followed:
        raise ValueError(f"another version wrote it: this one has no optimization {min(unknown, key=str)!r}")
    return plan


def keep_reasons(new_plan: Plan, stored: Plan) -> Plan:
    """Return the new plan of a resumed run, with the reasons of the stored plan where a value is the same.

    What earlier trainers learned from crashes or from running out of memory overrides everything, even the job.
    """
    replayed = {row.name: row.value for row in new_plan.decisions if row.source == "file"}
    return new_plan.with_rows(
        row for row in stored.decisions if row.source in LEARNED or replayed.get(row.name) == row.value
    )


def halve_micro_batch(plan: Plan, samples: int, reason: str) -> Plan | None:
    """Return the plan with half the micro-batch at the same batch size; None if it is already 1.

    Args:
        plan: the effective plan.
        samples: samples of a batch that one process computes, the upper limit of the micro-batch.
        reason: the reason, without the number of samples.
    """
    value = plan.value("micro_batch")
    present_size = samples if value == "off" else min(samples, int(value))
    if present_size == 1:
        return None
    row = plan.decision("micro_batch").learn(present_size // 2, "memory", f"{reason} with {present_size} at a time")
    return replace(plan.with_rows([row]), seen={})


def format_value(value: Value) -> str:
    """Format a value in YAML notation."""
    return str(value).lower() if isinstance(value, bool) else str(value)
