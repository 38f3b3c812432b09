"""`drivetrain plan JOB --on MACHINES`: time, memory and price of a job on machines that are not at hand."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.optimizations import step_graph
from drivetrain.plan import plan as plans
from drivetrain.plan.plan import Plan
from drivetrain.system import signals
from drivetrain.system.console import open_console, say_json
from drivetrain.system.files import read_json
from drivetrain.system.units import format_bytes
from drivetrain.tracking.live.time_left import format_clock_time
from drivetrain.tuning import batch_size, measuring_child
from drivetrain.tuning.elsewhere.known_machines import KnownMachine, Rates
from drivetrain.tuning.elsewhere.price_list import PriceList
from drivetrain.tuning.elsewhere.recorded_times import find_recorded_step
from drivetrain.tuning.elsewhere.step_work import StepWork
from drivetrain.tuning.run_length import RunTimes, refuse_within

MODULE = "drivetrain.tuning.processes.count_work"
REACHED_SHARE = 0.54
"""Share of a data sheet's rates that steps of PyTorch reach, products as well as copies: docs/measurements/elsewhere-2026-11-28.md."""
KERNEL_SECONDS = 2e-6
"""Of the smallest operation on a GPU."""
LAUNCH_SECONDS = 15e-6
"""In which the host of a GPU starts one operation."""
GPU_START_SECONDS = 5.0
"""More than a start on a CPU: the larger libraries, and the driver."""
GPU_CONTEXT_BYTES = 600 << 20
MODEL_ERROR = "modelled: within 40 % of published rates where a GPU computes; a slow host makes small networks several times slower"
"""By records of other machines, on the same page."""


@dataclass(frozen=True)
class Measured:
    """What was measured and counted here."""

    times: RunTimes
    rates: Rates
    precision: str
    load_seconds: float
    work: Mapping[str, StepWork]
    """Of a step, with products in fp32 and in bf16."""
    cpus: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any], cpus: int) -> Measured:
        """Read what the child has written."""
        work = {
            key: StepWork(**{**data[key], "operations": tuple(map(tuple, data[key]["operations"]))})
            for key in ("fp32", "bf16")
            if key in data
        }
        times, rates = RunTimes(**data["times"]), Rates(**data["rates"])
        return cls(times, rates, data["precision"], data.get("load_seconds", 0.0), work, cpus)

    def get_work(self, precision: str) -> StepWork:
        """The work of a step under a precision."""
        return self.work["bf16" if precision in ("bf16", "fp16") else "fp32"]

    def compute_seconds(self, precision: str, rates: Rates, least_seconds: float = 0.0) -> float:
        """Seconds of a step by the roofline of some rates."""
        return self.get_work(precision).compute_seconds(
            rates, low_precision=precision in ("bf16", "fp16"), least_seconds=least_seconds
        )


@dataclass(frozen=True)
class Estimate:
    """A job on one machine."""

    machine: str
    source: str
    """`measured` here, `recorded` by an earlier run on such a machine, or `modelled`."""
    seconds: float
    step_seconds: float
    memory: int
    """Bytes that the training needs, of the GPU if it has one."""
    memory_limit: int
    price: float | None = None
    limit: str = ""
    """What a step of a GPU waits for: `compute`, the `host` that starts its operations, or `data`; empty for a CPU."""

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory <= self.memory_limit


def model_step(measured: Measured, target: KnownMachine, plan: Plan, *, is_recorded: bool) -> tuple[float, str]:
    """Seconds of a training step on a target machine, and what it waits for.

    Args:
        measured: the job on this machine.
        target: the other machine.
        plan: of the other machine.
        is_recorded: whether its step can be recorded as one graph, which the host starts once.
    """
    precision = str(plan.value("precision"))
    if target.gpu is None:
        share = measured.compute_seconds(precision, target.rates) / measured.compute_seconds(
            measured.precision, measured.rates
        )
        return measured.times.step * share, ""
    work = measured.get_work(precision)
    parts = {
        "compute": measured.compute_seconds(precision, scale_rates(target.rates), KERNEL_SECONDS),
        "host": LAUNCH_SECONDS * (1 if is_recorded else work.launches),
        "data": measured.load_seconds * max(1.0, measured.cpus / target.cpus),
    }
    limit = max(parts, key=lambda part: parts[part])
    return parts[limit], limit


def scale_rates(rates: Rates) -> Rates:
    """What steps reach of a data sheet's rates."""
    return Rates(**{name: REACHED_SHARE * value for name, value in asdict(rates).items()})


def estimate(measured: Measured, target: KnownMachine, job: Job, this_machine: Hardware) -> Estimate:
    """Model a job on a target machine."""
    hardware = target.make_hardware(this_machine)
    plan = plans.resolve(job, hardware)
    is_recorded = bool(target.gpu) and step_graph.refuse(job, hardware, None, True) is None
    step_seconds, limit = model_step(measured, target, plan, is_recorded=is_recorded)
    share = step_seconds / measured.times.step
    times = RunTimes(
        measured.times.start + GPU_START_SECONDS * bool(target.gpu),
        step_seconds,
        measured.times.evaluation * share,
        measured.times.steps_per_epoch,
        measured.times.peak_bytes,
        test=measured.times.test * share,
    )
    work = measured.get_work(str(plan.value("precision")))
    memory = work.weight_bytes + work.saved_bytes + GPU_CONTEXT_BYTES if target.gpu else measured.times.peak_bytes
    memory_limit = target.gpu.memory if target.gpu else hardware.memory.available
    return Estimate(
        target.name, "modelled", times.predict_seconds(job.train), step_seconds, memory, memory_limit, limit=limit
    )


def list_estimates(
    measured: Measured, machines: Iterable[KnownMachine], job: Job, this_machine: Hardware, runs: Path
) -> Iterator[Estimate]:
    """This machine first; of a target one what an earlier run in `runs` took there, else what is modelled."""
    times, limit = measured.times, this_machine.gpu.memory if this_machine.gpu else this_machine.memory.available
    yield Estimate("here", "measured", times.predict_seconds(job.train), times.step, times.peak_bytes, limit)
    for target in machines:
        modelled = estimate(measured, target, job, this_machine)
        step_seconds = find_recorded_step(runs, job, target)
        if step_seconds is not None:
            recorded = replace(times, step=step_seconds, evaluation=0.0)
            seconds = recorded.predict_seconds(job.train)
            yield replace(modelled, source="recorded", seconds=seconds, step_seconds=step_seconds, limit="")
        else:
            yield modelled


def compare_machines(
    spec: Path,
    assignments: Sequence[str],
    this_machine: Hardware,
    plan: Plan,
    machines: Iterable[KnownMachine],
    *,
    prices: PriceList | None,
    as_json: bool,
) -> int:
    """Show time, memory and price of a job here and on other machines; nothing is written. Returns the exit code.

    Raises:
        SpecError: if the length of the run is still to be measured, or it has no steps.
    """
    source = SpecSource(spec, assignments).read()
    job = source.load()
    batch_size.refuse_auto(job, "plan --on")
    refuse_within(job, "`drivetrain plan --on`")
    with tempfile.TemporaryDirectory(prefix="work-") as scratch:
        output = Path(scratch) / "work.json"
        code = measuring_child.measure(MODULE, Path(scratch), source, plan, this_machine, [str(output)])
        signals.stop_early()
        if code:
            return code
        measured = Measured.from_json(read_json(output), this_machine.cpu.budget)
    if measured.times.is_solved:
        raise job.spec_error(
            ("train",),
            "has no steps whose time could be modelled: the heads are solved in one pass over the data",
            "a job that is trained by steps",
            "train it here, or set train.solve_heads: false",
        )
    rows = list(list_estimates(measured, machines, job, this_machine, Path("runs")))
    if prices:
        rows = [replace(row, price=prices.compute_price(row.machine, row.seconds)) for row in rows]
    if as_json:
        say_json({"machines": [asdict(row) | {"fits": row.fits} for row in rows], "model_error": MODEL_ERROR})
    else:
        open_console().print(render(rows, job, prices))
    return 0


def render(rows: Iterable[Estimate], job: Job, prices: PriceList | None) -> RenderableType:
    """A table for 100 columns, and what its figures rest on."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    price = (f"price, {prices.currency}",) if prices else ()
    for name in ("machine", "time", "a step", "memory", *price, "source"):
        table.add_column(name, justify="left" if name in ("machine", "source") else "right")
    for row in rows:
        memory = format_bytes(row.memory) if row.fits else f"{format_bytes(row.memory)}: does not fit"
        cells = [row.machine, format_clock_time(row.seconds), f"{row.step_seconds * 1000:.3g} ms", memory]
        if prices:
            cells.append(_format_price(row.price))
        table.add_row(*cells, f"{row.source}, waits for {row.limit}" if row.limit else row.source)
    notes = [f"{job.name}, {job.train.epochs:,} epochs; of a GPU its own memory counts", MODEL_ERROR]
    if prices:
        notes.append(f"prices of {prices.date}, for the time alone")
    return Group(table, *(Text(note, style="dim") for note in notes))


def _format_price(price: float | None) -> str:
    if price is None:
        return ""
    return f"{price:.2f}" if price >= 0.01 else "< 0.01"
