"""Solved heads are better than trained ones, have the same bits after a kill, and need that nothing else is trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.models import safetensors_file
from drivetrain.system import fault_points
from drivetrain.training import train
from drivetrain.training.run import Run
from tests import tiny
from tests.messages import says_only

torch.set_num_threads(1)
BODY = "freeze: {names: [features]}"
LATER = f"{BODY}, unfreeze: [{{epoch: 3, names: ['features.*']}}]"
STEPS = 4
"""Of an epoch."""


def solving_job(train: str = "", model: str = BODY, *, epochs: int = 3, checkpoint_section: str = "") -> Job:
    return tiny.job(train, model, "feature_cache: true, cpu_threads: 1", epochs=epochs, sections=checkpoint_section)


def train_job(folder: Path, job: Job, *, cached: bool = True) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    run = tiny.assemble_run(folder, job, settings={"feature_cache": cached})
    train.train(run)
    return run


def read_rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def head_events(folder: Path) -> list[str]:
    return [row["text"] for row in read_rows(folder, "events.jsonl") if row["kind"] == "heads"]


def test_solved_heads_have_a_smaller_loss_than_many_steps(tmp_path: Path) -> None:
    solved = train_job(tmp_path / "solved", solving_job())
    stepped = train_job(tmp_path / "stepped", solving_job("solve_heads: false", epochs=30))
    assert solved.last_metrics["validation/loss"] < stepped.last_metrics["validation/loss"]
    assert says_only(json.loads((tmp_path / "solved/result.json").read_text())["stopped_because"], "heads-are-solved")
    assert len(read_rows(tmp_path / "stepped")) > len(read_rows(tmp_path / "solved")) == 2
    first, second = head_events(tmp_path / "solved")
    assert says_only(first, "solved-place-epochs", 3, "train.solve_heads")
    assert second.startswith("solved with penalty ")
    assert not head_events(tmp_path / "stepped")


def test_without_cached_features_the_solution_is_the_same(tmp_path: Path) -> None:
    cached, computed = (train_job(tmp_path / str(on), solving_job(), cached=on) for on in (True, False))
    assert cached.last_metrics == pytest.approx(computed.last_metrics, rel=1e-3)


def test_the_body_keeps_its_weights(tmp_path: Path) -> None:
    run = train_job(tmp_path, solving_job())
    before, after = (
        safetensors_file.read(tmp_path / f"checkpoints/{name}/model.safetensors") for name in ("step-0", "step-1")
    )
    changed = {name for name, value in before.items() if not torch.equal(after[name], value)}
    assert changed == {"classifier.weight", "classifier.bias"}
    assert run.counters.step == 1


def test_what_is_unfrozen_later_goes_on_from_the_solution(tmp_path: Path) -> None:
    run = train_job(tmp_path, solving_job(model=LATER, epochs=4))
    assert says_only(head_events(tmp_path)[0], "solved-place-first-epochs", 2, "train.solve_heads")
    rows = read_rows(tmp_path)
    assert [row["step"] for row in rows if "train/loss" in row] == [*range(2 * STEPS, 4 * STEPS + 1)]
    assert [row["epoch"] for row in rows if "validation/loss" in row] == [1, 2, 3]
    assert (run.counters.epoch, run.counters.step) == (4, 4 * STEPS)


@pytest.mark.parametrize("moment", ["solve heads", "record evaluation", "trained"])
@pytest.mark.parametrize("model", [BODY, LATER])
def test_killed_and_resumed_the_bits_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, moment: str
) -> None:
    class Killed(BaseException):
        pass

    def kill(name: str, *_: object) -> None:
        if name == moment:
            raise Killed

    job = solving_job(model=model, epochs=4)
    train_job(tmp_path / "whole", job)
    with monkeypatch.context() as patch:
        patch.setattr(fault_points, "listener", kill)
        with pytest.raises(Killed):
            train_job(tmp_path / "killed", job)
    train_job(tmp_path / "killed", job)
    for name in ("model/model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


def test_a_run_that_began_with_steps_goes_on_with_them(tmp_path: Path) -> None:
    """For example a run of a version that could not solve heads."""
    stepping = solving_job("solve_heads: false", checkpoint_section="checkpoint: {every: 1 steps, keep: 30}\n")
    train_job(tmp_path / "stepped", stepping)
    (tmp_path / "old/checkpoints").mkdir(parents=True)
    shutil.copytree(tmp_path / "stepped/checkpoints/step-6", tmp_path / "old/checkpoints/step-6")
    shutil.copytree(tmp_path / "stepped/checkpoints/best-4", tmp_path / "old/checkpoints/best-4")
    for name in ("metrics.jsonl", "inputs.json"):
        shutil.copy(tmp_path / "stepped" / name, tmp_path / "old")
    path = tmp_path / "old/checkpoints/step-6/state.json"
    run = train_job(tmp_path / "old", solving_job(checkpoint_section="checkpoint: {every: 1 steps, keep: 30}\n"))
    assert path.exists()
    assert run.counters.step == 3 * STEPS
    assert not head_events(tmp_path / "old")
    name = "model/model.safetensors"
    assert (tmp_path / "old" / name).read_bytes() == (tmp_path / "stepped" / name).read_bytes()


OBSTACLES = {
    "augmentation": (BODY, "", "data.augment.hflip changes the inputs in every epoch"),
    "average": (BODY, "ema: 0.9", "train.ema averages the weights of steps"),
    "loss": (BODY, "loss: focal", "this loss is not known to be convex"),
    "modes": ("freeze: {names: [features], train_mode: true}", "", "model.freeze.train_mode lets the features change"),
    "layers": ("freeze: {names: [features.0]}", "", "more than linear outputs is trained in the first epoch"),
}


def augment(job: Job) -> Job:
    """The job with images that are flipped at random."""
    flipped = job.data.augment.model_copy(update={"hflip": True})  # type: ignore[attr-defined]
    return job.model_copy(update={"data": job.data.model_copy(update={"augment": flipped})})


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_cannot_be_solved_is_trained_by_steps_and_refused_if_asked_for(tmp_path: Path, name: str) -> None:
    model, settings, obstacle = OBSTACLES[name]
    jobs = [solving_job(", ".join(filter(None, (settings, wish))), model) for wish in ("", "solve_heads: true")]
    if name == "augmentation":
        jobs = [augment(job) for job in jobs]
    run = tiny.assemble_run(tmp_path, jobs[0])
    assert not run.solves_heads
    assert run.unsolved_reason.startswith(obstacle if name != "layers" else "")
    with pytest.raises(SpecError) as error:
        tiny.assemble_run(tmp_path, jobs[1])
    assert obstacle in str(error.value)
    assert "train.solve_heads" in str(error.value)
