"""What is recorded of the machine while a run trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.hardware.cgroup import ProcessCgroup
from drivetrain.tracking.monitor import Monitor


@pytest.mark.parametrize(("limit", "recorded"), [(None, None), (1 << 30, 700 << 20)])
def test_memory_of_others_is_not_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, recorded: int | None
) -> None:
    """Without a limit the process stands in the group of the whole machine."""
    monkeypatch.setattr(ProcessCgroup, "read_memory", lambda self: (limit, 700 << 20))
    with Monitor(tmp_path, interval=0.01) as monitor:
        pass
    sample = monitor.latest()
    assert sample
    assert (sample["memory_limit"], sample["memory_used"]) == (limit, recorded)
    assert sample["process_memory"] > 0
    assert monitor.peak == (recorded or max(int(row["process_memory"] or 0) for row in monitor.history()))
