"""Where the kernel kills a whole container at its memory limit, a run says so before it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

TRAINER = """
import sys
from dataclasses import replace
from pathlib import Path
from drivetrain.supervisor import supervisor
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.supervisor.supervisor import TrainRequest
real = supervisor.detect
def detect(runs):
    machine = real(runs)
    return replace(machine, memory=replace(machine.memory, limit=8 << 30))
supervisor.detect = detect
supervisor.is_killed_as_one = lambda: sys.argv[3] == "1"
supervisor.run_trainers = lambda *given, **named: 137
sys.exit(supervisor.train(TrainRequest(SpecSource(Path(sys.argv[1]), tuple(sys.argv[4:])), Path(sys.argv[2]))))
"""


@pytest.mark.parametrize(
    ("group", "settings", "is_reported"),
    [("1", [], True), ("0", [], False), ("1", ["optimize.micro_batch=auto"], False)],
)
def test_a_run_says_that_it_cannot_be_tried_again(
    tmp_path: Path, group: str, settings: list[str], is_reported: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, str(ROOT / "jobs" / "digits.yaml"), str(tmp_path), group, *settings],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 137, done.stderr
    events = tmp_path / "digits-001" / "events.jsonl"
    rows = [json.loads(line)["text"] for line in events.read_text().splitlines()] if events.exists() else []
    assert any("memory.oom.group is set" in row for row in rows) is is_reported
    assert ("memory: memory.oom.group is set" in done.stdout) is is_reported
