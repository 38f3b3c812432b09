"""The page of `gpu.py`: what was measured on one GPU, in words and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from gpu_rows import ROWS

from runtime.hardware.facts import Hardware
from runtime.plan.plan import written
from runtime.system.units import format_bytes

SHOWN = (
    "precision",
    "compile",
    "cuda_graphs",
    "attention",
    "channels_last",
    "cudnn_benchmark",
    "fused_optimizer",
    "gpu_resident_data",
    "pinned_transfer",
    "loader_workers",
    "allocator_segments",
)
WANTED = {"vision": 5.0, "cnn-lstm": 2.5, "memory": 0.4}
CURVE = (1, 5, 10, 20, 30, 40, 50, 60)
"""Steps whose loss is shown."""


def slug(machine: Hardware) -> str:
    """The chip as part of a file name."""
    name = machine.gpu.name if machine.gpu else "cpu"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def page(found: dict[str, Any], machine: Hardware) -> str:
    """The whole page."""
    return (
        "\n".join(
            [*_head(found, machine), *_rows(found), *_plans(found), *_curves(found), *_compiled(found), *_goals(found)]
        )
        + "\n"
    )


def _head(found: dict[str, Any], machine: Hardware) -> Iterator[str]:
    gpu = machine.gpu
    yield f"# {gpu.name if gpu else 'No GPU: a trial of the script'}, {found['date']}"
    yield ""
    if found["smoke"]:
        yield "Made with `--smoke`: networks and data are so small that these figures say nothing."
        yield ""
    arms = [arm for row in found["rows"].values() for arm in row.values() if "torch" in arm]
    chip = (
        f"capability {gpu.capability[0]}.{gpu.capability[1]}, {format_bytes(gpu.memory)}, driver {gpu.driver}"
        if gpu
        else ""
    )
    parts = [
        chip,
        f"torch {arms[0]['torch']}" if arms else "",
        f"{machine.cpu.budget} CPUs",
        f"{found['seconds']:.0f} s",
    ]
    yield f"Made by `python benchmarks/gpu.py`: {', '.join(filter(None, parts))} in all."
    yield ""


def _rows(found: dict[str, Any]) -> Iterator[str]:
    yield "## The tutorial loop in fp32 against the plan"
    yield ""
    head = [
        "network",
        "batch",
        "tutorial samples/s",
        "plan samples/s",
        "ratio",
        "tutorial peak",
        "plan peak",
        "busy",
        "waits a step",
        "first step",
        "loss after the same steps",
    ]
    yield from _table([head, *(_row(name, row, found["smoke"]) for name, row in found["rows"].items())])
    yield ""
    yield "Busy is the GPU's utilization, waits is how often the host waits for the GPU: tutorial, then plan."
    yield ""
    for name, row in found["rows"].items():
        for arm, result in row.items():
            if "missing" in result:
                yield f"- {name}, {arm}: {result['missing']}"
    yield ""


def _row(name: str, row: dict[str, Any], small: bool) -> list[str]:
    one, two = row["tutorial"], row["plan"]
    ratio = speedup(row)
    steps = min(len(one.get("losses", ())), len(two.get("losses", ())))
    losses = f"{one['losses'][steps - 1]:.4f}, {two['losses'][steps - 1]:.4f} after {steps}" if steps else "-"
    return [
        ROWS[name].title,
        str(ROWS[name].sizes(small)[1]),
        _number(one, "samples_per_second"),
        _number(two, "samples_per_second"),
        f"{ratio:.2f}" if ratio else "-",
        _bytes(one),
        _bytes(two),
        _both(one, two, "busy", ".0f"),
        _both(one, two, "waits_per_step", ".1f"),
        _both(one, two, "first_step", ".1f"),
        losses,
    ]


def speedup(row: dict[str, Any]) -> float | None:
    """How many times faster the plan is; None if one of the two is missing."""
    one, two = (row[arm].get("samples_per_second") for arm in ("tutorial", "plan"))
    return two / one if one and two else None


def _plans(found: dict[str, Any]) -> Iterator[str]:
    yield "## The plans"
    yield ""
    for name, row in found["rows"].items():
        made = row["plan"].get("plan")
        if made:
            yield f"- {name}: " + ", ".join(f"{key} {written(made[key])}" for key in SHOWN if key in made)
    yield ""


def _curves(found: dict[str, Any]) -> Iterator[str]:
    yield f"## Loss in four precisions: {ROWS[found['curves']].title}, without compile"
    yield ""
    yield "fp32 is true fp32: TF32 is off in convolutions, too."
    yield ""
    measured = {name: arm for name, arm in found["precisions"].items() if "losses" in arm}
    if measured:
        steps = [step for step in CURVE if all(step <= len(arm["losses"]) for arm in measured.values())]
        rows = [["step", *measured]]
        rows += [[str(step), *(f"{arm['losses'][step - 1]:.4f}" for arm in measured.values())] for step in steps]
        rows.append(["samples/s", *(_number(arm, "samples_per_second") for arm in measured.values())])
        rows.append(["peak", *map(_bytes, measured.values())])
        yield from _table(rows)
        yield ""
    for name, arm in found["precisions"].items():
        if "missing" in arm:
            yield f"- {name}: {arm['missing']}"
    yield ""


def _compiled(found: dict[str, Any]) -> Iterator[str]:
    yield "## The plan with compile"
    yield ""
    yield (
        "Pays after: optimizer steps until the saved time makes up for the longer first step. Median times, since a "
        "step may compile again."
    )
    yield ""
    rows = [["network", "plan step", "compiled step", "plan first step", "compiled first step", "pays after"]]
    for name, two in found["compiled"].items():
        one = found["rows"][name]["plan"]
        if "missing" in one or "missing" in two:
            yield f"- {name}: {two.get('missing') or one['missing']}"
            continue
        gain, cost = one["median_step"] - two["median_step"], two["first_step"] - one["first_step"]
        rows.append(
            [
                ROWS[name].title,
                *(f"{arm['median_step'] * 1e3:.1f} ms" for arm in (one, two)),
                *(f"{arm['first_step']:.1f} s" for arm in (one, two)),
                f"{cost / gain:,.0f} steps" if gain > 0 else "never",
            ]
        )
    if len(rows) > 1:
        yield ""
        yield from _table(rows)
    yield ""


def _goals(found: dict[str, Any]) -> Iterator[str]:
    yield "## What was wanted"
    yield ""
    ratios = {name: ratio for name, row in found["rows"].items() if (ratio := speedup(row))}
    vision = max((ratios[name] for name in ("resnet18", "resnet50") if name in ratios), default=None)
    saved = [
        1 - row["plan"]["peak"] / row["tutorial"]["peak"]
        for row in found["rows"].values()
        if row["plan"].get("peak") and row["tutorial"].get("peak")
    ]
    yield _goal("a vision row", vision, WANTED["vision"], "x")
    yield _goal("CNN-LSTM", ratios.get("cnn-lstm"), WANTED["cnn-lstm"], "x")
    yield _goal("less memory on a row", max(saved, default=None), WANTED["memory"], "")


def _goal(what: str, got: float | None, wanted: float, unit: str) -> str:
    if got is None:
        return f"- {what}: not measured, {wanted:g}{unit} wanted"
    return f"- {what}: {got:.2f}{unit}, {wanted:g}{unit} wanted: {'reached' if got >= wanted else 'not reached'}"


def _number(arm: dict[str, Any], key: str) -> str:
    return f"{arm[key]:,.0f}" if arm.get(key) is not None else "-"


def _bytes(arm: dict[str, Any]) -> str:
    return format_bytes(arm["peak"]) if arm.get("peak") else "-"


def _both(one: dict[str, Any], two: dict[str, Any], key: str, form: str) -> str:
    return ", ".join(format(arm[key], form) if arm.get(key) is not None else "-" for arm in (one, two))


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if number == 0:
            yield "|" + " --- |" * len(row)
