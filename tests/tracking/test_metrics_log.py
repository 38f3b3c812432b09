"""metrics.jsonl at a resume: rows after the checkpoint go, and lines that cannot be read are kept and named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drivetrain.system.run_files import RunFiles
from drivetrain.tracking.metrics_log import MetricsLog
from tests.messages import says_only

ROWS = [json.dumps({"step": step, "epoch": 0, "lr": 0.1, "train/loss": 1 / step}) for step in range(1, 11)]
DAMAGED = [
    "{bad",
    "\x00\x00",
    '{"step": 1e400}',
    "[]",
    "{}",
    '{"step": "3", "epoch": 0}',
    '{"step": 3}',
    "[" * 100_000,
    "\xff",
]


def resume(folder: Path, lines: list[str], end: str = "\n") -> list[str]:
    """Resume after step 8 with such a file; the texts of the events."""
    (folder / "metrics.jsonl").write_bytes(("\n".join(lines) + end).encode("latin-1"))
    MetricsLog(folder, after=8).close()
    assert [row["step"] for row in RunFiles(folder).read_rows("metrics.jsonl")] == [
        step for step in range(1, 9) if ROWS[step - 1] in lines
    ]
    return [str(row["text"]) for row in RunFiles(folder).read_rows("events.jsonl")]


@pytest.mark.parametrize("damaged", DAMAGED, ids=range(len(DAMAGED)))
def test_a_line_that_cannot_be_read_is_kept_and_named(tmp_path: Path, damaged: str) -> None:
    lines = [*ROWS[:5], damaged, *ROWS[6:]]
    [event] = resume(tmp_path, lines)
    assert says_only(event, "metrics-lines-cannot-be-read", "metrics.jsonl", "line 6", "metrics-damaged-1.jsonl")
    assert (tmp_path / "metrics-damaged-1.jsonl").read_bytes() == ("\n".join(lines) + "\n").encode("latin-1")


def test_several_lines_and_another_resume(tmp_path: Path) -> None:
    assert "lines 6, 7, 8, 9" in resume(tmp_path, [*ROWS[:5], *DAMAGED[:4], *ROWS[9:]])[0]
    events = resume(tmp_path, [*ROWS[:3], *["x"] * 12, *ROWS[3:]])
    assert "lines 4, 5, 6, 7, 8, 9, 10, 11, 12, 13 and 2 more" in events[1]
    assert sorted(path.name for path in tmp_path.glob("metrics-damaged-*")) == [
        "metrics-damaged-1.jsonl",
        "metrics-damaged-2.jsonl",
    ]


def test_a_last_line_that_a_kill_cut_off_is_no_damage(tmp_path: Path) -> None:
    assert resume(tmp_path, [*ROWS[:9], ROWS[9][:12]], end="") == []
    assert not list(tmp_path.glob("metrics-damaged-*"))
