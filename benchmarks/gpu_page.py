"""The page of `gpu.py`, from the rows that are measured so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_rows import NETWORKS, SETTINGS, list_rows

from drivetrain.system.units import format_bytes

Row = dict[str, Any]
LOOPS = ("eager", "graph", "compiled")
PEERS = (("lightning", "tuned"), ("huggingface", "tuned"), ("huggingface", "default"))
GOALS = {
    "G1": ("resnet18", 0.95),
    "G2": ("resnet50", 0.97),
    "G3": ("resnet-small", 0.95),
    "G4": ("bert", 0.90),
    "G6": ("cnn-lstm", 0.95),
    "G7": ("mlp", 0.90),
}
"""Rows of the benchmark suite: network, and the share of the best loop by hand that is wanted."""


def write_page(rows: Sequence[Row], path: Path, *, is_trial: bool = False) -> None:
    """Write the page; of a row that was measured twice the last one counts."""
    by_name = {row["row"]: row for row in rows}
    parts = (_head(by_name, is_trial), _speeds(by_name), _steps(by_name), _settings(by_name), _single(by_name))
    path.write_text("\n".join([*(line for part in parts for line in part), *_goals(by_name), *_missing(by_name), ""]))


def _head(rows: dict[str, Row], is_trial: bool) -> Iterator[str]:
    machine = next(iter(rows.values()), {})
    yield f"# {machine.get('chip', 'nothing measured')}, driver {machine.get('driver') or '-'}, torch {machine.get('torch', '-')}"
    yield ""
    if is_trial:
        yield "Made with `--smoke`: networks and data are so small that these figures say nothing."
        yield ""
    measured = sum("failed" not in row and "missing" not in row for row in rows.values())
    yield f"Made by `python benchmarks/gpu.py`: {measured} of {len(list_rows())} rows are measured."
    yield ""


def _speeds(rows: dict[str, Row]) -> Iterator[str]:
    yield "## Samples a second"
    yield ""
    head = ["network", "ours", "ours, step graph", *(f"by hand, {loop}" for loop in LOOPS)]
    head += [" ".join(peer) for peer in PEERS] + ["ours / best by hand"]
    table = [head]
    for name, network in NETWORKS.items():
        ours = [_speed(rows, f"ours:{name}:{setting}") for setting in ("default", "step-graph")]
        loops = [_speed(rows, f"reference:{name}:{loop}") for loop in LOOPS]
        peers = [_speed(rows, f"{trainer}:{name}:{level}") for trainer, level in PEERS]
        share = _ratio(max(filter(None, ours), default=None), max(filter(None, loops), default=None))
        table.append([network.title, *map(_number, (*ours, *loops, *peers)), _number(share, 2)])
    yield from _table(table)
    yield ""


def _speed(rows: dict[str, Row], name: str) -> float | None:
    value = rows.get(name, {}).get("samples_per_second")
    return float(value) if value else None


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator and denominator else None


def _steps(rows: dict[str, Row]) -> Iterator[str]:
    yield "## What a step launches"
    yield ""
    launch = rows.get("ceilings", {}).get("launch_us")
    table = [["network", "whose", "kernels", "kernel ms", "launches ms", "waits", "step ms", "peak"]]
    for name, network in NETWORKS.items():
        for whose, row in (("ours", rows.get(f"steps:{name}")), ("by hand", rows.get(f"reference:{name}:eager"))):
            if row and "kernels_per_step" in row:
                launches = row["kernels_per_step"] * launch / 1e3 if launch else None
                cells = (row["kernel_ms_per_step"], launches, row["waits_per_step"], row.get("ms_per_step"))
                peak = format_bytes(row["peak_bytes"]) if "peak_bytes" in row else "-"
                table.append(
                    [network.title, whose, _number(row["kernels_per_step"]), *(_number(c, 2) for c in cells), peak]
                )
    yield from _table(table) if len(table) > 1 else iter(["No kernels were counted: that takes a GPU."])
    yield ""
    yield "Launches is the number of kernels times the cost of a launch on this host: above the kernels' time, the GPU waits."
    yield ""


def _settings(rows: dict[str, Row]) -> Iterator[str]:
    yield "## Settings of ours"
    yield ""
    table = [["network", "setting", "samples/s", "allocated", "reserved", "last loss", "plan"]]
    for name, network in NETWORKS.items():
        for setting in SETTINGS:
            row = rows.get(f"ours:{name}:{setting}", {})
            if "samples_per_second" in row:
                loss = _number(row["losses"][-1], 4) if row.get("losses") else "-"
                plan = ", ".join(f"{key} {value}" for key, value in row.get("plan", {}).items())
                memory = [format_bytes(row.get(key, 0)) for key in ("gpu_allocated", "gpu_reserved")]
                table.append([network.title, setting, _number(row["samples_per_second"]), *memory, loss, plan])
    yield from _table(table)
    yield ""


def _single(rows: dict[str, Row]) -> Iterator[str]:
    yield "## Ceilings, bits, starts, tests"
    yield ""
    names = ["ceilings", *(name for name, _ in list_rows() if name.startswith(("bits", "start", "tests")))]
    for name in names:
        figures = {
            k: v for k, v in rows.get(name, {}).items() if k not in ("row", "chip", "driver", "torch", "seconds")
        }
        if figures:
            yield f"- {name}: " + ", ".join(f"{key} {_plain(value)}" for key, value in figures.items())
    yield ""


def _goals(rows: dict[str, Row]) -> Iterator[str]:
    yield "## Against what is wanted"
    yield ""
    for goal, (name, wanted_share) in GOALS.items():
        ours = max(filter(None, (_speed(rows, f"ours:{name}:{s}") for s in ("default", "step-graph"))), default=None)
        loops = max(filter(None, (_speed(rows, f"reference:{name}:{loop}") for loop in LOOPS)), default=None)
        peer = max(
            filter(None, (_speed(rows, f"{t}:{name}:tuned") for t in ("lightning", "huggingface"))), default=None
        )
        share, lead = _ratio(ours, loops), _ratio(ours, peer)
        verdict = "not measured" if share is None else "reached" if share >= wanted_share else "not reached"
        lead_text = f", {lead:.2f} of the best tuned peer" if lead else ""
        shares = f"{_number(share, 2)} of the best loop by hand, {wanted_share} wanted"
        yield f"- {goal}, {NETWORKS[name].title}: {shares}: {verdict}{lead_text}"
    frozen_speed, whole_speed = _speed(rows, "ours:bert-frozen:default"), _speed(rows, "ours:bert:default")
    yield f"- G5, frozen layers: {_number(_ratio(frozen_speed, whole_speed), 2)} times the speed of the whole network"
    starts = [rows.get(f"start:{state}", {}).get("seconds_to_step_100") for state in ("cold", "warm")]
    yield f"- G8, seconds to step 100 with compile: {_number(starts[0], 1)} cold, {_number(starts[1], 1)} warm, 10 wanted"
    memory = [rows.get(f"ours:resnet50:{s}", {}).get("gpu_allocated") for s in ("default", "checkpointing")]
    yield f"- G9, memory: {' and '.join(format_bytes(m) if m else '-' for m in memory)} without and with checkpointing"
    yield ""


def _missing(rows: dict[str, Row]) -> Iterator[str]:
    yield "## What is not measured"
    yield ""
    for name, _ in list_rows():
        row = rows.get(name)
        reason = "its turn did not come" if row is None else row.get("failed") or row.get("missing")
        if reason:
            yield f"- {name}: {_plain(reason)}"


def _plain(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace("|", "/").replace("\n", " ")


def _number(value: float | None, places: int = 0) -> str:
    return "-" if value is None else f"{value:,.{places}f}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(map(_plain, row))} |"
        if number == 0:
            yield "|" + " --- |" * len(row)
