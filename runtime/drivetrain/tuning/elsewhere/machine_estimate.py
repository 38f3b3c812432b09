"""`drivetrain plan JOB --on MACHINES`: models time, memory and price elsewhere, from what was measured and counted here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from drivetrain.errors import DrivetrainError, SpecError
from drivetrain.hardware import gpu_selection
from drivetrain.hardware.facts import Hardware, from_json, from_json_as
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.plan import plan as plans
from drivetrain.plan.plan import Plan
from drivetrain.system import run_files
from drivetrain.system.console import open_console, say_json
from drivetrain.system.run_files import HARDWARE_FILE, RESULT_FILE, RunFiles
from drivetrain.system.run_records import read_integer, read_mapping, read_number
from drivetrain.system.units import format_bytes, parse_bytes
from drivetrain.tracking.live.time_left import format_clock_time
from drivetrain.tuning import batch_size, measuring_child
from drivetrain.tuning.elsewhere.machine_catalog import CatalogMachine, PriceList, Rates
from drivetrain.tuning.run_length import RunTimes, refuse_within

REACHED_SHARE = 0.54
"""Share of a data sheet's rates that steps of PyTorch reach, products as well as copies: docs/measurements/elsewhere-2026-11-28.md."""
KERNEL_SECONDS = 2e-6
"""Of the smallest operation on a GPU."""
LAUNCH_SECONDS = 15e-6
"""In which the host of a GPU starts one operation: assumed, that of the recorded H100 needs 40 to 90 µs."""
GPU_START_SECONDS = 5.0
"""More than a start on a CPU, for the larger libraries and the driver: assumed."""
GPU_CONTEXT_BYTES = 600 << 20


@dataclass(frozen=True)
class Measured:
    """What was measured and counted here."""

    times: RunTimes
    rates: Rates
    fp32_step: float
    """Seconds of a step in fp32, as evaluations are; CPUs differ too much in other formats to compare them."""
    load_seconds: float
    work: Mapping[str, StepWork]
    """Of a step, with products in fp32 and in bf16."""
    data_bytes: int
    """Of all training samples as they are read."""
    cpus: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any], cpus: int) -> Measured:
        """Read what the child has written."""
        work = {key: from_json_as(StepWork, data[key], key) for key in ("fp32", "bf16") if key in data}
        times, rates = RunTimes(**data["times"]), Rates(**data["rates"])
        return cls(
            times,
            rates,
            data.get("fp32_step", times.step),
            data.get("load_seconds", 0.0),
            work,
            data["data_bytes"],
            cpus,
        )

    def get_work(self, precision: str) -> StepWork:
        """The work of a step under a precision."""
        return self.work["bf16" if precision in ("bf16", "fp16") else "fp32"]

    def compute_seconds(self, precision: str, rates: Rates, least_seconds: float = 0.0) -> float:
        """Seconds of a step by the roofline of some rates."""
        return self.get_work(precision).compute_seconds(
            rates, low_precision=precision in ("bf16", "fp16"), least_seconds=least_seconds
        )

    def count_memory(self, job: Job, hardware: Hardware, plan: Plan) -> tuple[int, int]:
        """Bytes that a training needs on some hardware, and those that it may use; of a GPU both are its own."""
        if hardware.gpu is None:
            limit = parse_bytes(job.limits.memory) if job.limits.memory else hardware.memory.available
            return self.times.peak_bytes, min(limit, hardware.memory.available)
        work = self.get_work(str(plan.value("precision")))
        data_bytes = self.data_bytes if plan.value("gpu_resident_data") else 0
        needed = work.weight_bytes + work.saved_bytes + data_bytes + GPU_CONTEXT_BYTES
        return needed, gpu_selection.count_allowed_bytes(hardware.gpu, job.limits.gpu_memory)


@dataclass(frozen=True)
class Estimate:
    """A job on one machine."""

    machine: str
    source: str
    """`measured` here, `recorded` by an earlier run on such a machine, `modelled`, or `refused` by its plan."""
    seconds: float | None = None
    step_seconds: float | None = None
    memory: int = 0
    """Bytes that the training needs, of the GPU if it has one."""
    memory_limit: int = 0
    price: float | None = None
    limit: str = ""
    """What a step of a GPU waits for: `compute`, the `host` that starts its operations, or `data`; empty for a CPU."""
    reason: str = ""
    """Why it is refused."""

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.source != "refused" and self.memory <= self.memory_limit


def model_step(measured: Measured, machine: CatalogMachine, plan: Plan) -> tuple[float, str]:
    """Seconds of a training step on a machine of the catalog, and what it waits for.

    Args:
        measured: the job on this machine.
        machine: the other one.
        plan: of the other machine.
    """
    precision = str(plan.value("precision"))
    if machine.gpu is None:
        share = measured.compute_seconds("fp32", machine.rates) / measured.compute_seconds("fp32", measured.rates)
        return measured.fp32_step * share, ""
    work = measured.get_work(precision)
    # A step that is recorded as one graph is started once.
    is_recorded = bool(plan.value("step_graph"))
    parts = {
        "compute": measured.compute_seconds(precision, machine.rates.scale(REACHED_SHARE), KERNEL_SECONDS),
        "host": LAUNCH_SECONDS * (1 if is_recorded else work.launches),
        "data": measured.load_seconds * max(1.0, measured.cpus / machine.cpus),
    }
    limit = max(parts, key=lambda part: parts[part])
    return parts[limit], limit


def estimate_machine(measured: Measured, machine: CatalogMachine, job: Job, here: Hardware, *, plain: bool) -> Estimate:
    """Model a job on a machine of the catalog, under the plan for it."""
    limited = machine.limit_cpus(job.limits.cpus)
    try:
        hardware = gpu_selection.select_gpus(limited.make_hardware(here), job.limits.gpus)
        plan = plans.resolve(job, hardware, plain=plain)
    except DrivetrainError as error:
        return Estimate(machine.name, "refused", reason=_describe_refusal(error))
    if machine.gpu and not hardware.gpu:
        return Estimate(machine.name, "refused", reason=f"limits.gpus: {job.limits.gpus}")
    if hardware.gpu is None:
        limited = limited.limit_cpus(float(str(plan.value("cpu_threads"))))
    step_seconds, limit = model_step(measured, limited, plan)
    share = step_seconds / measured.fp32_step
    times = replace(
        measured.times,
        start=measured.times.start + GPU_START_SECONDS * bool(hardware.gpu),
        step=step_seconds,
        evaluation=measured.times.evaluation * share,
        test=measured.times.test * share,
    )
    memory, memory_limit = measured.count_memory(job, hardware, plan)
    return Estimate(
        machine.name, "modelled", times.predict_seconds(job.train), step_seconds, memory, memory_limit, limit=limit
    )


def _describe_refusal(error: DrivetrainError) -> str:
    """The keys that a plan refuses, with what is possible; on one line."""
    problems = error.problems if isinstance(error, SpecError) else []
    lines = [f"{problem.key} {problem.given}: {problem.possible}" for problem in problems]
    return "; ".join(lines) or str(error).splitlines()[0]


def list_estimates(
    measured: Measured,
    machines: Iterable[CatalogMachine],
    job: Job,
    here: Hardware,
    runs: Path,
    *,
    plan: Plan,
    plain: bool,
) -> Iterator[Estimate]:
    """This machine first; of another what an earlier run in `runs` took there, else what is modelled.

    Args:
        measured: the job here.
        machines: of the catalog.
        job: which of its runs count.
        here: the hardware of this machine.
        runs: the folder with run folders.
        plan: of this machine.
        plain: whether all optimizations are off.
    """
    times = measured.times
    memory, memory_limit = measured.count_memory(job, here, plan)
    yield Estimate("here", "measured", times.predict_seconds(job.train), times.step, memory, memory_limit)
    for machine in machines:
        modelled = estimate_machine(measured, machine, job, here, plain=plain)
        step_seconds = None if plain or modelled.reason else find_recorded_step(runs, job, machine)
        if step_seconds is not None:
            recorded = replace(times, step=step_seconds, evaluation=0.0).predict_seconds(job.train)
            yield replace(modelled, source="recorded", seconds=recorded, step_seconds=step_seconds, limit="")
        else:
            yield modelled


@dataclass(frozen=True)
class StepWork:
    """What one optimizer step computes and keeps."""

    operations: tuple[tuple[int, int, float], ...]
    """FLOP of matrix products, bytes read and written, and how often on average."""
    weight_bytes: int
    """Weights, gradients, the optimizer's state, and the averaged weights if there are any."""
    saved_bytes: int
    """What the largest forward pass keeps for its backward pass."""
    launches: float
    """Operations that the host starts."""

    def compute_seconds(self, rates: Rates, *, low_precision: bool, least_seconds: float = 0.0) -> float:
        """Seconds of a device that computes or moves, whatever takes longer, one operation after the other.

        The roofline model: Williams, Waterman, Patterson, Communications of the ACM 52 (2009).

        Args:
            rates: of the device.
            low_precision: whether matrix products are in bf16 or fp16.
            least_seconds: of one operation, however small.
        """
        matmul = rates.low_matmul if low_precision else rates.matmul
        return sum(
            count * max(least_seconds, flop / matmul, moved / rates.bandwidth) for flop, moved, count in self.operations
        )


MODEL_ERROR = "modelled: within 40 % of published rates where a GPU computes; a slow host makes small networks several times slower"
"""By records of other machines, on the same page."""


def compare_machines(
    spec: Path,
    assignments: Sequence[str],
    this_machine: Hardware,
    plan: Plan,
    machines: Iterable[CatalogMachine],
    *,
    plain: bool,
    prices: PriceList | None,
    as_json: bool,
) -> None:
    """Show time, memory and price of a job here and on other machines; nothing is written.

    Raises:
        SpecError: if the length of the run is still to be measured, or it has no steps.
        MeasurementEnded: if nothing could be measured here.
    """
    source = SpecSource(spec, assignments).read()
    job = source.load()
    batch_size.refuse_auto(job, "plan --on")
    refuse_within(job, "`drivetrain plan --on`")
    figures = measuring_child.measure_result("count_work", source, plan, this_machine)
    measured = Measured.from_json(figures, this_machine.cpu.budget)
    if measured.times.is_solved:
        raise job.spec_error(
            ("train",),
            "has no steps whose time could be modelled: the heads are solved in one pass over the data",
            "a job that is trained by steps",
            "train it here, or set train.solve_heads: false",
        )
    rows = list(list_estimates(measured, machines, job, this_machine, Path("runs"), plan=plan, plain=plain))
    if prices:
        rows = [replace(row, price=prices.compute_price(row.machine, row.seconds or 0.0)) for row in rows]
    if as_json:
        say_json({"machines": [asdict(row) | {"fits": row.fits} for row in rows], "model_error": MODEL_ERROR})
    else:
        title = f"{job.name}, {measured.times.count_steps(job.train):,} steps; of a GPU its own memory counts"
        open_console().print(render(rows, title, prices))


def render(rows: Iterable[Estimate], title: str, prices: PriceList | None) -> RenderableType:
    """A table for 100 columns, and what its figures rest on."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    price = (f"price, {prices.currency}",) if prices else ()
    for name in ("machine", "time", "a step", "memory", *price, "source"):
        table.add_column(name, justify="left" if name in ("machine", "source") else "right")
    notes = [title, MODEL_ERROR]
    for row in rows:
        if row.seconds is None or row.step_seconds is None:
            table.add_row(row.machine, *[""] * (3 + len(price)), row.source)
            notes.insert(0, f"{row.machine}: {row.reason}")
            continue
        memory = format_bytes(row.memory) if row.fits else f"{format_bytes(row.memory)}: does not fit"
        cells = [row.machine, format_clock_time(row.seconds), f"{row.step_seconds * 1000:.3g} ms", memory]
        if prices:
            cells.append("" if row.price is None else f"{row.price:.2f}" if row.price >= 0.01 else "< 0.01")
        table.add_row(*cells, f"{row.source}, waits for {row.limit}" if row.limit else row.source)
    if prices:
        notes.append(f"prices of {prices.date}, for the time alone")
    return Group(table, *(Text(note, style="dim") for note in notes))


LENGTH_KEYS = frozenset({"epochs", "steps", "max_time", "within", "seed", "early_stopping"})
"""Keys of `train:` that do not change a step."""
PATH_KEYS = frozenset({"train", "validation", "test", "fold"})
"""Keys of `data:` that are paths, which differ from machine to machine, or choose rows."""
MAX_STEP_SECONDS = 1e5


def find_recorded_step(runs: Path, job: Job, machine: CatalogMachine) -> float | None:
    """Seconds of a step, evaluations included, in the newest finished run of the same job on such a machine.

    Args:
        runs: the folder with run folders.
        job: its name, and all that a step depends on but the data's path, are those of the run.
        machine: of the catalog.
    """
    names = re.compile(rf"{re.escape(job.name)}-\d{{3,}}")
    folders = [folder for folder in runs.glob("*") if names.fullmatch(folder.name)]
    for folder in sorted(folders, key=run_files.parse_suffix, reverse=True):
        seconds = _read_step_seconds(RunFiles(folder))
        hardware = _read_hardware(RunFiles(folder))
        # A recorded spec has all defaults.
        is_same_work = _select_work(read_stored_spec(folder).data) == _select_work(job.dump())
        if seconds and hardware and machine.matches(hardware) and is_same_work:
            return seconds
    return None


def _read_step_seconds(files: RunFiles) -> float | None:
    result = files.read_object(RESULT_FILE)
    seconds, steps = read_number(result, "seconds"), read_integer(result, "steps")
    if seconds is None or steps is None or steps < 1:
        return None
    return seconds / steps if 0 < seconds / steps < MAX_STEP_SECONDS else None


def _read_hardware(files: RunFiles) -> Hardware | None:
    try:
        return from_json(files.read_object(HARDWARE_FILE))
    except DrivetrainError:
        return None


def _select_work(spec: Mapping[str, Any]) -> list[object]:
    """The values of a spec on which a step depends."""
    values = [spec.get(key) for key in ("task", "model", "optimize")]
    values += [read_mapping(spec, "limits").get(key) for key in ("gpus", "processes")]
    for section, ignored_keys in (("data", PATH_KEYS), ("train", LENGTH_KEYS)):
        values.append({k: value for k, value in read_mapping(spec, section).items() if k not in ignored_keys})
    return values
