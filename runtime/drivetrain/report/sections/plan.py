"""The plan with its reasons, and the requested and effective settings."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain import optimizations
from drivetrain.plan.plan import Decision, Plan
from drivetrain.report.blocks import Block, Details, Section, Table, Text, Tone
from drivetrain.report.formatting import format_json
from drivetrain.system.run_records import read_mapping

_COLLAPSE_LENGTH = 100
"""Characters; longer effective values are collapsed."""


def plan_section(plan: Plan) -> Section:
    """Return every decision with value, source, effect and reason."""
    off = optimizations.off_values()
    idle = [d for d in plan.decisions if d.name in off and d.value == off[d.name] and d.source != "job"]
    rows = tuple(_format_row(decision) for decision in plan.decisions if decision not in idle)
    image = f"Image {format_json(plan.image or 'none')}: {format_json(plan.image_reason)}."
    blocks: list[Block] = [Text(f"Profile {format_json(plan.profile)}. {image}")]
    if rows:
        blocks.append(Table(("setting", "value", "source", "effect", "reason"), rows))
    if idle:
        lines = (f"{name}: {value} ({source}): {reason}" for name, value, source, _, reason in map(_format_row, idle))
        blocks.append(Details(f"{len(idle)} settings that are off, with the reason of each", "\n".join(lines)))
    if any(decision.provisional for decision in plan.decisions):
        text = "Values with a question mark are provisional: the model and the data were not loaded."
        blocks.append(Text(text, Tone.QUIET))
    return Section("plan", "Plan", tuple(blocks), is_folded=True)


def effective_section(plan: Plan) -> Section | None:
    """Show the requested and effective settings, differences first."""
    rows = _list_effective(plan)
    if not rows:
        return None
    rows.sort(key=lambda row: _is_same(row[1]))
    changed = len(list_differences(plan))
    count = (
        "All settings are"
        if not changed
        else f"{changed} of {len(rows)} settings {'is' if changed == 1 else 'are'} not"
    )
    tones = {i: Tone.WARN for i, (_, row) in enumerate(rows) if not _is_same(row)}
    columns = ("setting", "requested", "effective", "cause")[: 4 if changed else 3]
    compared = tuple(_format_comparison(name, row)[: len(columns)] for name, row in rows)
    table: Block = Table(columns, compared, tones)
    if not changed:
        lines = (f"{name}: {requested} = {effective}" for name, requested, effective in compared)
        table = Details("requested = effective", "\n".join(lines))
    verdict = Text(f"{count} in effect as requested.", Tone.WARN if changed else Tone.GOOD)
    blocks = (verdict, table, *_list_libraries(plan))
    return Section("seen", "Requested and effective settings", blocks, is_folded=not changed)


def notes_section(plan: Plan) -> Section | None:
    """Show the notes about this machine and this job."""
    notes = tuple(Text(format_json(note), Tone.WARN) for note in plan.notes)
    return Section("notes", "Notes", notes) if notes else None


def list_differences(plan: Plan | None) -> list[tuple[str, Mapping[str, object]]]:
    """List the settings whose effective value differs from the requested one."""
    return [(name, row) for name, row in _list_effective(plan) if not _is_same(row)] if plan else []


def _format_row(decision: Decision) -> tuple[str, ...]:
    value = format_json(decision.value) + (" ?" if decision.provisional else "")
    reason = f"{decision.reason} [{decision.evidence}]" if decision.evidence else decision.reason
    name, source, effect = map(format_json, (decision.name, decision.source, decision.effect))
    return name, value, source, effect, format_json(reason)


def _list_effective(plan: Plan) -> list[tuple[str, Mapping[str, object]]]:
    return [(format_json(name), row) for name, row in plan.seen.items() if isinstance(row, Mapping) and "asked" in row]


def _list_libraries(plan: Plan) -> list[Block]:
    """List the versions and thread counts of libraries."""
    libraries = read_mapping(plan.seen, "libraries")
    if not libraries:
        return []
    texts = {format_json(name): format_json(value) for name, value in libraries.items()}
    short = tuple((name, text) for name, text in texts.items() if len(text) <= _COLLAPSE_LENGTH)
    folds = [Details(name, "\n".join(text.split("; "))) for name, text in texts.items() if len(text) > _COLLAPSE_LENGTH]
    return [*([Table(("library", "version and threads"), short)] if short else []), *folds]


def _is_same(row: Mapping[str, object]) -> bool:
    return bool(row.get("same", row.get("asked") == row.get("seen")))


def _format_comparison(name: str, row: Mapping[str, object]) -> tuple[str, ...]:
    cause = row.get("cause") or ("" if _is_same(row) else "unknown")
    return name, format_json(row.get("asked")), format_json(row.get("seen")), format_json(cause)
