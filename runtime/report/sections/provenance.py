"""From which bytes a finished run was made: code, image, data, spec and plan, by their digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runtime.report.blocks import Section, Table, Text, Tone
from runtime.report.formatting import shown
from runtime.report.record import Record

_CHANGED = "-changed"
"""Ends a commit from which files differed; the word of provenance.json."""
_MOST = 30
"""Files of code that are named."""


def provenance_section(record: Record) -> Section | None:
    """Commit, image, versions, and the SHA-256 of data, code, spec, plan and weights."""
    found = record.provenance
    if not found:
        return None
    command = f"`drivetrain reproduce {record.name}` trains it again from these, and compares every bit."
    table = Table(("item", "value"), tuple(_rows(found)))
    tone = Tone.QUIET
    return Section("provenance", "Made from", (table, Text(command, tone)))


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "commit of the job's folder", _commit(found.get("commit"))
    later_commits = found.get("later_commits")
    for later in later_commits if isinstance(later_commits, list) else ():
        yield "commit when it was resumed", _commit(later)
    image = _mapping(found.get("image"))
    yield "image", " ".join(filter(None, (shown(image.get("name") or ""), shown(image.get("id") or "")))) or "none"
    versions = {name: found.get(name) for name in ("drivetrain", "python", "torch") if found.get(name)}
    yield "versions", ", ".join(f"{name} {shown(version)}" for name, version in versions.items())
    yield from ((f"SHA-256 of {shown(key)}", shown(digest)) for key, digest in _mapping(found.get("data")).items())
    code = list(_mapping(found.get("code")).items())
    yield from ((f"SHA-256 of {shown(name)}", shown(digest)) for name, digest in code[:_MOST])
    if code[_MOST:]:
        yield "more code", f"{len(code) - _MOST} files, in provenance.json"
    for key, name in (("spec", "the resolved spec"), ("plan", "the plan's values"), ("model", "the weights")):
        if found.get(key):
            yield f"SHA-256 of {name}", shown(found[key])


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _commit(commit: object) -> str:
    if not commit:
        return "not under git"
    text = shown(commit)
    return f"{text.removesuffix(_CHANGED)}, with changes that are not committed" if text.endswith(_CHANGED) else text
