"""From which bytes a finished run was made: code, image, data, spec and plan, by their digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.report.blocks import Section, Table, Text, Tone
from drivetrain.report.formatting import format_json
from drivetrain.report.record import Record
from drivetrain.system.run_records import read_mapping

_CHANGED = "-changed"
"""Ends a commit from which files differed; the word of provenance.json."""
_MAX_CODE_FILES = 30
"""Files of code that are named."""


def provenance_section(record: Record) -> Section | None:
    """Commit, image, versions, and the SHA-256 of data, code, spec, plan and weights."""
    provenance = record.provenance
    if not provenance:
        return None
    command = f"`drivetrain reproduce {record.name}` trains it again from these, and compares every bit."
    table = Table(("item", "value"), tuple(_list_rows(provenance)))
    tone = Tone.QUIET
    return Section("provenance", "Made from", (table, Text(command, tone)), is_folded=True)


def _list_rows(provenance: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "commit of the job's folder", _describe_commit(provenance.get("commit"))
    later_commits = provenance.get("later_commits")
    for later in later_commits if isinstance(later_commits, list) else ():
        yield "commit when it was resumed", _describe_commit(later)
    image = read_mapping(provenance, "image")
    yield "image", " ".join(filter(None, (format_json(image.get(key) or "") for key in ("name", "id")))) or "none"
    versions = {name: provenance.get(name) for name in ("drivetrain", "python", "torch") if provenance.get(name)}
    yield "versions", ", ".join(f"{name} {format_json(version)}" for name, version in versions.items())
    data = read_mapping(provenance, "data")
    yield from ((f"SHA-256 of {format_json(key)}", format_json(digest)) for key, digest in data.items())
    code = list(read_mapping(provenance, "code").items())
    yield from ((f"SHA-256 of {format_json(name)}", format_json(digest)) for name, digest in code[:_MAX_CODE_FILES])
    if code[_MAX_CODE_FILES:]:
        yield "more code", f"{len(code) - _MAX_CODE_FILES} files, in provenance.json"
    for key, name in (("spec", "the resolved spec"), ("plan", "the plan's values"), ("model", "the weights")):
        if provenance.get(key):
            yield f"SHA-256 of {name}", format_json(provenance[key])


def _describe_commit(commit: object) -> str:
    if not commit:
        return "not under git"
    text = format_json(commit)
    return f"{text.removesuffix(_CHANGED)}, with changes that are not committed" if text.endswith(_CHANGED) else text
