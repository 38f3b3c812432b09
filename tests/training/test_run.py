"""The events of a run's parts are dated with the run's own position, after a resume too."""

from __future__ import annotations

import json
from pathlib import Path

from runtime.training import train
from runtime.training.checkpoints import checkpoint, run_state
from tests import tiny


def test_events_of_step_and_loader_carry_the_restored_position(tmp_path: Path) -> None:
    train.train(tiny.assembled(tmp_path, tiny.job(epochs=1)))
    loaded, _ = checkpoint.latest(tmp_path / "checkpoints")
    assert loaded is not None
    (tmp_path / "again").mkdir()
    made = tiny.assembled(tmp_path / "again", tiny.job(epochs=1))
    run_state.restore(made, loaded)
    made.step.options.report_memory("less memory")
    made.step.options.report_compile("no compiler")
    made.batches.tell("no workers")
    events = [json.loads(line) for line in (tmp_path / "again/events.jsonl").read_text().splitlines()]
    assert [(event["kind"], event["step"]) for event in events] == [("memory", 4), ("compile", 4), ("loader", 4)]
    assert (made.counters.samples, made.samples_before) == (64, 64)
