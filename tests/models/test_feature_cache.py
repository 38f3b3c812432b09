"""Kept activations: the same gradients and metrics as the whole network, the same bits again, and where they cannot be."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.data.load_data import load
from drivetrain.models import feature_cache as prefix
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.optimizations import feature_cache, prefix_precision
from drivetrain.plan import plan
from drivetrain.training import recorded_inputs
from drivetrain.training.assemble import Assembly
from drivetrain.training.checkpoints.resume import PROMISE
from drivetrain.training.evaluation.validation import evaluate
from drivetrain.training.phase_timer import PhaseTimer
from tests import reports, tiny
from tests.messages import begins_with, ends_with, says
from tests.models.cached_features import NETWORKS, assemble_run, compute_gradient, job
from tests.paths import ROOT
from tests.supervisor import tiny_run
from tests.waiting import wait_until


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_metrics_are_those_of_the_whole_network(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    frozen_job = job(tmp_path, name)
    uncached, cached = assemble_run(tmp_path, frozen_job, False), assemble_run(tmp_path, frozen_job, True)
    assert feature_cache.effective(cached)
    assert not feature_cache.effective(uncached)
    assert inspection.inspect_workload(uncached.dataset, uncached.model).prefix == NETWORKS[name][1]
    before = {name: value.clone() for name, value in build(frozen_job, load(frozen_job)).module.state_dict().items()}
    assert all(torch.equal(before[name], value) for name, value in cached.model.state_dict().items())
    expected, cached_gradient = compute_gradient(uncached), compute_gradient(cached)
    assert expected.norm() > 1e-3
    torch.testing.assert_close(cached_gradient, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    (uncached_metrics, _), (cached_metrics, _) = evaluate(uncached), evaluate(cached)
    assert cached_metrics == pytest.approx(uncached_metrics, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["encoder, one layer of two", "whole encoder", "resnet18"])
def test_it_takes_what_the_plan_says_and_is_computed_once(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = assemble_run(tmp_path, job(tmp_path, name), True)
    layer = next(m for m in cached.model.modules() if not list(m.children()) and list(m.parameters()))
    calls: list[int] = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    tiny.losses(cached, 1)
    first = len(calls)
    tiny.losses(cached, 20)
    assert calls[first:] == []
    evaluate(cached)
    evaluated = len(calls)
    evaluate(cached)
    assert len(calls) == evaluated > first
    splits = [cached.dataset.train, cached.dataset.validation]
    assert all(isinstance(split, prefix.Activations) for split in splits)
    fresh = assemble_run(tmp_path, cached.job, False)
    cache_bytes = sum(split.rows.flat.nbytes for split in splits)  # type: ignore[attr-defined]
    assert cache_bytes == inspection.inspect_workload(fresh.dataset, fresh.model).prefix_bytes
    assert f"feature_cache: {NETWORKS[name][1]} computed once for " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["encoder, one layer of two", "resnet18"])
def test_on_the_disk_and_again_the_bits_are_the_same(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run computes them again from the frozen weights of its checkpoint."""
    assert PROMISE.startswith("after a kill")
    frozen_job = job(tmp_path, name)
    one = assemble_run(tmp_path, frozen_job, True)
    expected = tiny.losses(one, 3)
    monkeypatch.setattr(feature_cache, "_place", lambda *_: "disk")
    before = set(tmp_path.iterdir())
    two = assemble_run(tmp_path, frozen_job, True)
    assert tiny.losses(two, 3) == expected
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "events.jsonl"}
    for mine, theirs in ((one.dataset.train, two.dataset.train), (one.dataset.validation, two.dataset.validation)):
        mine.gather(torch.arange(3).numpy())
        theirs.gather(torch.arange(4, 6).numpy())
        assert mine.rows.flat.tobytes() == theirs.rows.flat.tobytes()  # type: ignore[attr-defined]


def test_a_second_run_over_the_same_data_computes_nothing_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run reuses the activations that the tuner's own run has computed."""
    frozen_job, machine = job(tmp_path, "resnet18"), tiny.machine()
    data = load(frozen_job)
    losses = []
    for format_ in (False, False, True):
        network = build(frozen_job, data)
        plain = plan.resolve(frozen_job, machine, inspection.inspect_workload(data, network.module), plain=True)
        values = {"feature_cache": True, "channels_last": format_}
        one = Assembly(
            frozen_job, machine, plain.with_values(values), tmp_path, data, network, tiny.QuietSignals()
        ).assemble()
        losses.append(tiny.losses(one, 3))
        assert len(data.cache) == 1
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-3)
    assert capsys.readouterr().out.count("computed once for 60 samples") == 2


@pytest.mark.parametrize("name", ["whole encoder", "encoder, one layer of two"])
def test_features_have_no_dropout_whatever_mode_the_network_is_in(tmp_path: Path, name: str) -> None:
    features = []
    for training in (True, False):
        run = assemble_run(tmp_path, job(tmp_path, name), True)
        run.model.train(training)
        features.append(run.dataset.validation.gather(np.arange(4)))
        assert run.model.training is training
    assert all(torch.equal(one, other) for one, other in zip(*features, strict=True))


def test_a_group_that_is_too_large_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = feature_cache._compute

    def small(*arguments: object) -> object:
        if len(arguments[-2]) > 3:  # type: ignore[arg-type]
            raise RuntimeError("[enforce fail] not enough memory: you tried to allocate")
        return real(*arguments)  # type: ignore[arg-type]

    frozen_job = job(tmp_path, "resnet18")
    expected = tiny.losses(assemble_run(tmp_path, frozen_job, True), 2)
    monkeypatch.setattr(feature_cache, "_compute", small)
    assert tiny.losses(assemble_run(tmp_path, frozen_job, True), 2) == pytest.approx(expected, rel=1e-4)


JOB = """
name: tiny
task: text-classification
data: {train: reports.csv, text: descripcion, labels: {modo: 0.3, causa: 0.7}}
model: {name: encoder, layers: 3, width: 64, heads: 2, vocabulary: 400, freeze: {embeddings: true, layers: 2}}
train: {epochs: 6, batch_size: 16}
checkpoint: {every: 5 steps}
optimize: {cpu_threads: 1}
"""


@pytest.mark.nightly
def test_chosen_by_itself_killed_and_resumed_the_bits_are_the_same(tmp_path: Path) -> None:
    reports.write_reports(tmp_path, 300)
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    done = tiny_run.train(path)
    assert done.returncode == 0, done.stderr
    row = next(
        r
        for r in json.loads((tmp_path / "runs/tiny-001/plan.json").read_text())["decisions"]
        if r["name"] == "feature_cache"
    )
    assert (row["value"], row["source"]) == (True, "choice")
    assert begins_with(row["reason"], "embeddings-layers-computed-once", 2, 3, 6)
    slow = subprocess.Popen(tiny_run.command(path), cwd=ROOT, stdout=subprocess.DEVNULL)
    run_folder = tmp_path / "runs/tiny-002"
    wait_until(lambda: len(list((run_folder / "checkpoints").glob("step-*"))) > 1)
    slow.kill()
    slow.wait()
    resumed = tiny_run.train(path)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumes" in resumed.stdout
    assert "computed once for" in resumed.stdout
    assert tiny_run.have_same_weights(tmp_path / "runs/tiny-001", run_folder)
    assert tiny_run.read_rows(tmp_path / "runs/tiny-001") == tiny_run.read_rows(run_folder)


@pytest.mark.parametrize("name", ["encoder, one layer of two", "resnet18"])
def test_in_bf16_the_activations_are_near_those_in_fp32(tmp_path: Path, name: str) -> None:
    frozen_job = job(tmp_path, name)
    exact, short = (assemble_run(tmp_path, frozen_job, True, {"prefix_precision": value}) for value in ("fp32", "bf16"))
    expected, bf16_gradient = compute_gradient(exact), compute_gradient(short)
    activations = [one.dataset.train.rows.flat for one in (exact, short)]  # type: ignore[attr-defined]
    assert prefix_precision.effective(short) == "bf16"
    difference = float(np.linalg.norm(activations[1] - activations[0]) / np.linalg.norm(activations[0]))
    assert 0 < difference < 2e-2
    torch.testing.assert_close(bf16_gradient, expected, rtol=0, atol=5e-2 * float(expected.abs().max()))


@pytest.mark.nightly
def test_the_report_shows_pictures_and_not_activations(tmp_path: Path) -> None:
    job(tmp_path, "resnet18", "optimize: {cpu_threads: 1, feature_cache: true}\n")
    done = tiny_run.train(tmp_path / "job.yaml")
    assert done.returncode == 0, done.stderr
    assert "not shown" not in done.stdout + done.stderr
    mistakes = json.loads((tmp_path / "runs/cached-001" / "result.json").read_text())["mistakes"]
    assert mistakes[""]
    assert all(row["picture"] for row in mistakes[""])


def test_a_run_that_resumes_without_room_for_them_says_so(tmp_path: Path) -> None:
    """Its bits differ from a run that kept them."""
    from drivetrain.system.files import write_json
    from drivetrain.tuning import assembly

    frozen_job = job(tmp_path, "resnet18")
    network = build(frozen_job, load(frozen_job))
    facts = inspection.inspect_workload(load(frozen_job), network.module)
    machine = tiny.machine()
    cached_plan = plan.resolve(frozen_job, machine, facts).with_values({"feature_cache": True})
    poor = replace(machine, memory=replace(machine.memory, available=1), storage=replace(machine.storage, runs_free=1))
    write_json(tmp_path / "hardware.json", poor.to_json())
    write_json(tmp_path / "plan.json", cached_plan.to_json())
    (tmp_path / "started").mkdir()
    recorded_inputs.record_inputs(assemble_run(tmp_path / "started", frozen_job, False), print, resumes=False)
    (tmp_path / "started" / "inputs.json").rename(tmp_path / "inputs.json")
    (tmp_path / "checkpoints" / "step-3").mkdir(parents=True)
    resumed = assembly.assemble_run(tmp_path, frozen_job, tiny.QuietSignals(), PhaseTimer())
    assert not feature_cache.effective(resumed)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    [text] = [row["text"] for row in events if row["kind"] == "resume" and "feature_cache" in row["text"]]
    assert begins_with(text, "feature-cache-false-true")
    assert ends_with(text, "results-may-longer-bit")


def test_memory_that_is_gone_between_the_plan_and_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run continues with the whole network; it ended with an AssertionError."""
    frozen_job = job(tmp_path, "resnet18")
    expected = tiny.losses(assemble_run(tmp_path, frozen_job, False), 2)
    monkeypatch.setattr(feature_cache, "_place", lambda *_: None)
    uncached = assemble_run(tmp_path, frozen_job, True)
    assert not feature_cache.effective(uncached)
    assert tiny.losses(uncached, 2) == expected
    assert says((tmp_path / "events.jsonl").read_text(), "room-outputs-parts", 5, 10)
