"""One reader of memory: what is shown, forecast, compared and reported is the same figure."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import psutil
import pytest

from drivetrain.hardware.cgroup import ProcessCgroup
from drivetrain.hardware.used_memory import UsedMemory, read_used_memory
from drivetrain.system import process_tree
from drivetrain.tuning.memory.meter import HostMeter
from tests.paths import PACKAGE

MIB = 1 << 20


def test_against_a_limit_the_group_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "sum_memory_bytes", lambda root=Path(): 900 * MIB)
    for limit, group in ((None, None), (1024 * MIB, 700 * MIB)):
        monkeypatch.setattr(ProcessCgroup, "read_memory", lambda self, limit=limit: (limit, 700 * MIB))
        memory = read_used_memory(ProcessCgroup(Path("/none")))
        assert memory == UsedMemory(900 * MIB, group, limit)
        assert memory.counted == (group or 900 * MIB)


def test_what_is_given_back_is_known() -> None:
    data = bytearray(200 * MIB)
    data[::4096] = b"x" * len(data[::4096])
    before = process_tree.read_released_bytes()
    del data
    assert process_tree.read_released_bytes() > before + 190 * MIB


def test_pages_of_files_do_not_count(tmp_path: Path) -> None:
    """Data read through a memory map filled a limit, and the report told it as the job's need."""
    file, meter = tmp_path / "data", HostMeter()
    file.write_bytes(bytes(100 * MIB))
    meter.reset_peak()
    before = process_tree.sum_memory_bytes(), meter.read_used()
    mapped = np.memmap(file, np.uint8, "r")
    assert int(mapped[::4096].sum()) == 0
    resident_bytes = psutil.Process().memory_info().rss
    assert resident_bytes > before[1] + 100 * MIB
    for now, earlier in zip((process_tree.sum_memory_bytes(), meter.read_used()), before, strict=True):
        assert now < earlier + 20 * MIB
    assert meter.peak() < before[1] + 20 * MIB
    del mapped


def test_nothing_else_reads_resident_memory() -> None:
    pattern = re.compile(r"\.rss\b|VmHWM|VmRSS|ru_maxrss|smaps|statm")
    readers = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if pattern.search(path.read_text())}
    assert readers == {"system/process_tree.py"}
