"""Gradual unfreezing: with cached features the numbers of the whole network, after a kill the bits of one run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.system import fault_points
from drivetrain.training import train
from drivetrain.training.lockstep import HalfUpdated
from drivetrain.training.run import Run
from tests import tiny
from tests.messages import begins_with, ends_with, says_only

torch.set_num_threads(1)
THIRD = "[features.14, features.15, features.17, features.18]"
"""The layers of the third stage of convolutions."""
MODEL = "freeze: {names: [features]}, unfreeze: [{epoch: 4, names: ['features.*']}, {epoch: 2, names: " + THIRD + "}]"
TRAIN = "ema: 0.5, lr_groups: {'features.[0-9]': 0.1, features: 0.3}"
STEPS = 4
"""Of an epoch."""


def make_job(cache: bool = True, every: str = "1 steps") -> Job:
    checkpoint_section = f"checkpoint: {{every: {every}, keep: 30}}\n"
    optimize = f"feature_cache: {str(cache).lower()}, cpu_threads: 1"
    return tiny.job(TRAIN, MODEL, optimize, epochs=5, sections=checkpoint_section)


def assemble_run(folder: Path, job: Job) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    feature_cache = job.optimize["feature_cache"]
    return tiny.assemble_run(folder, job, settings={"feature_cache": feature_cache})


def train_job(folder: Path, job: Job) -> Run:
    run = assemble_run(folder, job)
    train.train(run)
    return run


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def read_events(folder: Path, kind: str) -> list[str]:
    return [row["text"] for row in rows(folder, "events.jsonl") if row["kind"] == kind]


@pytest.fixture(scope="module")
def uninterrupted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with cached features that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    train_job(folder, make_job())
    return folder


def weights(folder: Path, step: int) -> dict[str, Tensor]:
    from drivetrain.models import safetensors_file

    return safetensors_file.read(folder / "checkpoints" / f"step-{step}" / "model.safetensors")


def test_cached_features_follow_what_is_frozen(uninterrupted_folder: Path, tmp_path: Path) -> None:
    """The cache shrinks and goes; a stale one would give other losses than the whole network."""
    train_job(tmp_path, make_job(cache=False))
    uncached_rows, cached_rows = (
        [row for row in rows(f) if "train/loss" in row] for f in (tmp_path, uninterrupted_folder)
    )
    assert len(cached_rows) == 5 * STEPS
    for cached, uncached in zip(cached_rows, uncached_rows, strict=True):
        assert cached["train/loss"] == pytest.approx(uncached["train/loss"], rel=1e-4), cached["step"]
        assert cached["grad_norm"] == pytest.approx(uncached["grad_norm"], rel=1e-3), cached["step"]
    assert [text.partition(" computed")[0] for text in read_events(uninterrupted_folder, "feature_cache")] == (
        ["22 of 22 layers"] * 2 + ["14 of 22 layers"] * 2
    )
    first_event, second_event = read_events(uninterrupted_folder, "unfreeze")
    assert first_event.startswith("epoch 2: features.14, features.15, features.17, features.18 unfrozen, ")
    assert first_event.endswith("; feature_cache: 14 of 22 layers")
    assert ends_with(second_event, "parameters-feature-cache", "4,663", "4,663")
    assert not read_events(tmp_path, "feature_cache")


def test_frozen_layers_stay_as_they_are_until_their_epoch(uninterrupted_folder: Path) -> None:
    """Weights, and the running statistics of BatchNorm, which does not count batches while it is frozen."""
    weights_at_epoch = {epoch: weights(uninterrupted_folder, max(1, epoch * STEPS)) for epoch in range(6)}
    for name, value in weights_at_epoch[0].items():
        last_frozen_epoch = (
            0 if name.startswith("classifier") else 1 if name.split(".")[1] in ("14", "15", "17", "18") else 3
        )
        for epoch in range(1, 6):
            same = torch.equal(weights_at_epoch[epoch][name], value)
            assert same == (epoch <= last_frozen_epoch), (name, epoch)


@pytest.mark.parametrize("step", [2, STEPS, STEPS + 1, 3 * STEPS, 3 * STEPS + 2])
def test_resumed_before_at_and_after_an_unfreezing(uninterrupted_folder: Path, tmp_path: Path, step: int) -> None:
    """From this checkpoint a new process ends with the bits of the run that nothing interrupted."""
    (tmp_path / "checkpoints").mkdir()
    checkpoint_names = [
        f"step-{step}",
        *(f"best-{n}" for n in range(step + 1) if (uninterrupted_folder / "checkpoints" / f"best-{n}").exists()),
    ]
    for name in checkpoint_names:
        shutil.copytree(uninterrupted_folder / "checkpoints" / name, tmp_path / "checkpoints" / name)
    for name in ("metrics.jsonl", "inputs.json"):
        shutil.copy(uninterrupted_folder / name, tmp_path)
    train_job(tmp_path, make_job())
    assert differences(tmp_path, uninterrupted_folder) == []


def differences(one: Path, two: Path) -> list[str]:
    """Files at the end of two runs that are not the same."""
    last = f"checkpoints/step-{5 * STEPS}"
    names = [f"{last}/{part}.safetensors" for part in ("model", "optimizer", "ema")]
    names += ["metrics.jsonl", "model/model.safetensors"]
    return [name for name in names if (one / name).read_bytes() != (two / name).read_bytes()]


def test_a_rollback_freezes_again(uninterrupted_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back from the second epoch into the first, with its frozen layers and its cache."""
    fails = [True]

    def fail(moment: str, *subjects: Any) -> None:
        if moment == "step" and subjects[0].counters.step == STEPS + 1 and fails:
            fails.clear()
            raise HalfUpdated("for the test")

    monkeypatch.setattr(fault_points, "listener", fail)
    train_job(tmp_path, make_job(every="3 steps"))
    assert any("back to step-3" in text for text in read_events(tmp_path, "memory"))
    assert differences(tmp_path, uninterrupted_folder) == []


def test_too_little_memory_for_the_unfrozen_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without enough memory is computed in halves, and the run ends normally."""
    choose = ForwardPass._choose_computation

    def limited(self: ForwardPass, inputs: Any) -> Any:
        layer = self.network.get_parameter("features.14.weight")
        if torch.is_grad_enabled() and layer.requires_grad and len(inputs[0]) > 8:
            raise MemoryError
        return choose(self, inputs)

    monkeypatch.setattr(ForwardPass, "_choose_computation", limited)
    train_job(tmp_path, make_job())
    [event] = [row for row in rows(tmp_path, "events.jsonl") if row["kind"] == "memory"]
    assert says_only(event["text"], "memory-micro-batch-continuing-same", 16, 8)
    assert event["step"] == STEPS
    assert len([row for row in rows(tmp_path) if "train/loss" in row]) == 5 * STEPS


def test_memory_is_measured_with_all_that_is_trained(tmp_path: Path) -> None:
    from drivetrain.data.dataset import Dataset
    from drivetrain.models import inspection
    from drivetrain.models.build import build
    from drivetrain.plan import plan
    from drivetrain.training.assemble import Assembly
    from drivetrain.tuning.memory.micro_batch import MicroBatchSearch

    job, machine = make_job(), tiny.machine()
    dataset: Dataset = tiny.dataset()
    network = build(job, dataset)
    facts = inspection.inspect_workload(dataset, network.module, network.unfreezing)
    assert facts.trainable == facts.parameters
    job_plan = plan.resolve(job, machine, facts)
    inputs = Assembly(job, machine, job_plan, tmp_path, dataset, network, tiny.QuietSignals(), facts, print)
    search = MicroBatchSearch(inputs).prepare_search(False)
    assert all(p.requires_grad for p in search.run.model.parameters())
    assert search.run.uncached_dataset is None
    assert search.weight_bytes == 4 * facts.parameters
    assert not network.module.get_parameter("features.14.weight").requires_grad


@pytest.mark.parametrize(
    ("model", "parts_of_error"),
    [
        ("unfreeze: [{epoch: 2, names: [features]}]", ("model.unfreeze[0].names[0]: 'features' is not frozen",)),
        (
            "freeze: {names: [features.0]}, unfreeze: [{epoch: 2, names: [feature.0]}]",
            ("tiny.yaml:5:", "no layer matches 'feature.0'", "layers: features.0", 'did you mean "features.0"?'),
        ),
        (
            "freeze: {names: [features.0]}, unfreeze: [{epoch: 3, names: [features]}, {epoch: 2, names: [features.0]}]",
            ("model.unfreeze[0].names[0]: 'features' is already unfrozen in epoch 2",),
        ),
        (
            "freeze: {names: [features.0]}, unfreeze: [{epoch: 4, names: [features.0]}]",
            ("model.unfreeze[0].epoch: is 4, and the run has 3 epochs", "an epoch of the run: 2 to 3"),
        ),
        ("unfreeze: [{epoch: 1, names: [x]}]", ("model.unfreeze[0].epoch: is 1", ">= 2")),
        ("freeze: {names: ['*']}, unfreeze: [{epoch: 2, names: ['*']}]", ("freezes every parameter",)),
        ("freeze: {names: [feature]}", ("model.freeze.names[0]: no layer matches", 'did you mean "features"?')),
    ],
)
def test_what_cannot_be_unfrozen(model: str, parts_of_error: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        tiny.build(tiny.job(model=model), tiny.dataset())
    for part in parts_of_error:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("unfreeze", "note"),
    [
        ("", "which never learn"),
        (", unfreeze: [{epoch: 2, names: [features.0]}]", "which never learn"),
        (", unfreeze: [{epoch: 2, names: [features]}]", "which learn only when they are unfrozen"),
    ],
)
def test_frozen_random_weights_are_told(unfreeze: str, note: str) -> None:
    [network_note] = tiny.build(tiny.job(model="freeze: {names: [features]}" + unfreeze), tiny.dataset()).notes
    assert begins_with(network_note, "freezes-layers-random-weights", "model.freeze", note)


def test_an_unfreezing_that_the_run_does_not_reach_is_told() -> None:
    job = tiny.job("steps: 8", "freeze: {names: [features]}, unfreeze: [{epoch: 3, names: [features]}]")
    notes = tiny.build(job, tiny.dataset()).notes
    assert says_only(notes, "epoch-never-reached-ends", 8, 3)
