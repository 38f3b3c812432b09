"""The tables of promises in tests/promises.md and SECURITY.md: every fault and threat is there, and the tests of each."""

from __future__ import annotations

import ast
import functools
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT, TESTS

PAGES = [(ROOT / page).read_text(encoding="utf-8") for page in ("tests/promises.md", "SECURITY.md")]
ROWS = [row for page in PAGES for row in page.splitlines() if re.match(r"\| [TSR]\d\d \|", row)]
# Not part of the product: trackers (T27), two machines (T29, T30), polled addresses (S11).
NOT_OURS = {"T27", "T29", "T30", "S11"}
FAULTS = ({f"T{n:02}" for n in range(1, 37)} | {f"S{n:02}" for n in range(1, 19)}) - NOT_OURS
RESOURCES = {f"R{n:02}" for n in range(1, 21)}
PROVEN_ELSEWHERE = {"malicious_files", "__init__", "driver", "small_job"}


@functools.cache
def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def list_named_tests(row: str) -> list[tuple[str, str]]:
    return re.findall(r"`([\w/]+\.py)::(\w+)`", row.split("|")[4])


def test_every_fault_has_a_row() -> None:
    assert {row[2:5] for row in ROWS} == FAULTS | RESOURCES


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other signals")
def test_every_signal_has_a_row() -> None:
    row = "".join(row for row in ROWS if row.startswith("| R"))
    assert [one.name for one in signal.Signals if not re.search(rf"\b{one.name}\b", row.replace("`", ""))] == []


def test_every_test_that_a_row_names_exists() -> None:
    for row in ROWS:
        cells = row.split("|")
        assert len(cells) == 6, row
        assert all(cell.strip() for cell in cells[1:5]), row
        assert list_named_tests(row), row
        assert re.sub(r"`[^`]*`", "", cells[4]).strip(" ,") == "", row
        for file, function in list_named_tests(row):
            assert function.startswith("test_")
            assert function in functions(TESTS / file), f"{file}::{function}"


def test_no_file_of_the_harness_is_left_out() -> None:
    files = {path.stem for path in (TESTS / "faults").glob("*.py")} - PROVEN_ELSEWHERE
    assert files == {Path(file).stem for row in ROWS for file, _ in list_named_tests(row) if file.startswith("faults/")}


def test_every_requirement_is_locked_by_hash() -> None:
    for path in (ROOT / "docker").glob("*-*.txt"):
        text = re.sub(r"\\\n\s*", "", path.read_text())
        rows = [line.strip() for line in text.splitlines() if line and not line.startswith("#")]
        assert rows, path
        pattern = r"[\w.\[\]-]+==[\w.+!-]+( *;[^#]*?)?( +--hash=sha256:[0-9a-f]{64})+"
        assert [line for line in rows if not re.fullmatch(pattern, line)] == []
