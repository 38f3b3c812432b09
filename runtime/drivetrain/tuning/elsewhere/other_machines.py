"""`drivetrain plan JOB --on MACHINES`: time, memory and price of a job on machines that are not at hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from drivetrain.hardware.facts import Hardware
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan.plan import Plan
from drivetrain.system.console import open_console, say_json
from drivetrain.system.units import format_bytes
from drivetrain.tracking.live.time_left import format_clock_time
from drivetrain.tuning import batch_size, measuring_child
from drivetrain.tuning.elsewhere.machine_catalog import CatalogMachine
from drivetrain.tuning.elsewhere.machine_estimate import Estimate, Measured, list_estimates
from drivetrain.tuning.elsewhere.price_list import PriceList
from drivetrain.tuning.run_length import refuse_within

MODULE = "drivetrain.tuning.processes.count_work"
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
) -> int:
    """Show time, memory and price of a job here and on other machines; nothing is written. Returns the exit code.

    Raises:
        SpecError: if the length of the run is still to be measured, or it has no steps.
    """
    source = SpecSource(spec, assignments).read()
    job = source.load()
    batch_size.refuse_auto(job, "plan --on")
    refuse_within(job, "`drivetrain plan --on`")
    code, figures = measuring_child.measure_result(MODULE, source, plan, this_machine)
    if code:
        return code
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
    return 0


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
