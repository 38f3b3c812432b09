"""`micro_batch: auto` searches with real steps and a fake meter, and the run uses the result."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.data.load_data import load
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.models import inspection, recompute
from drivetrain.models.build import build
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.plan import evidence, plan
from drivetrain.training.assemble import Assembly
from drivetrain.tuning.memory import meter, micro_batch, size_search
from drivetrain.tuning.memory.micro_batch import MicroBatchSearch
from drivetrain.tuning.memory.size_search import SizeSearch, SizeSearchResult, SizeTrial
from tests import tiny
from tests.messages import ends_with, says
from tests.tuning.memory.micro_batch_cases import assemble_run, case

torch.set_num_threads(1)
BASE = 1000 << 20


@dataclass
class Scale:
    """A meter that counts a MiB for every sample of a forward pass, and a quarter if blocks are recomputed."""

    limit: int
    """MiB above the base."""
    most: int = 0
    batch: int = 0
    """Bytes while a whole batch is there; making it takes as much again."""
    there: int = 0

    def read_used(self) -> int:
        return BASE + self.there

    def reset_peak(self) -> None:
        self.most = 0

    def peak(self) -> int:
        return self.read_used() + self.most

    def make(self) -> None:
        self.there, self.most = self.batch, self.batch

    def read_ceiling(self) -> int:
        return BASE + (self.limit << 20)

    @contextlib.contextmanager
    def guard(self, ceiling: meter.Ceiling) -> Iterator[None]:
        yield

    def pass_(self, forward: ForwardPass, count: int) -> None:
        bytes_per_sample = 1 << 18 if recompute.is_recomputed(forward.network) else 1 << 20
        self.most = max(self.most, count * bytes_per_sample)


@pytest.fixture
def limit_memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how many MiB of samples may be held."""

    def limit(room: int) -> None:
        scale, outputs = Scale(room), ForwardPass._choose_computation

        def count_samples(self: ForwardPass, inputs: Any) -> Any:
            scale.pass_(self, len(inputs[0]))
            return outputs(self, inputs)

        monkeypatch.setattr(ForwardPass, "_choose_computation", count_samples)
        monkeypatch.setattr(meter, "meter_for", lambda device: scale)

    return limit


@pytest.fixture
def limit_memory_with_batches(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the limit in MiB, and the MiB of a whole batch, which stays in memory during its step."""

    def limit(room: int, batch: int) -> None:
        scale, outputs, next_batch, time_step = (
            Scale(room, batch=batch << 20),
            ForwardPass._choose_computation,
            SizeSearch._next_batch,
            SizeSearch._time_step,
        )

        def count_samples(self: ForwardPass, inputs: Any) -> Any:
            scale.pass_(self, len(inputs[0]))
            return outputs(self, inputs)

        def make_batch(self: SizeSearch) -> Any:
            scale.make()
            return next_batch(self)

        def step(self: SizeSearch, *arguments: Any) -> float:
            try:
                return time_step(self, *arguments)
            finally:
                scale.most, scale.there = scale.most + scale.there, 0

        monkeypatch.setattr(ForwardPass, "_choose_computation", count_samples)
        monkeypatch.setattr(SizeSearch, "_next_batch", make_batch)
        monkeypatch.setattr(SizeSearch, "_time_step", step)
        monkeypatch.setattr(meter, "meter_for", lambda device: scale)

    return limit


def test_memory_of_preparing_a_batch_is_not_counted_per_sample(tmp_path: Path, limit_memory_with_batches: Any) -> None:
    """It takes 40 MiB and lies there with 20, so 30 samples find room; by proportion one would have taken all."""
    limit_memory_with_batches(50, 20)
    measurements = measure_sizes(make_job(optimize=", gradient_checkpointing: false"), tmp_path)
    assert measurements["micro_batch"].value == 28


def test_a_batch_that_cannot_be_made_fits_in_no_part(tmp_path: Path, limit_memory_with_batches: Any) -> None:
    limit_memory_with_batches(30, 20)
    assert "does not fit" in measure_sizes(make_job(), tmp_path)["micro_batch"].text


def make_job(model: str = "{name: small-cnn, width: 4}", optimize: str = "") -> Job:
    text = f"""
name: tiny
task: image-classification
data: {{train: x}}
model: {model}
train: {{epochs: 1, batch_size: 32}}
checkpoint: {{every: epoch}}
optimize: {{micro_batch: auto{optimize}}}
"""
    return job_spec.check(parse(text, "tiny.yaml"))


def measure_sizes(
    job: Job, folder: Path, messages: list[str] | None = None, data: Any = None
) -> dict[str, evidence.Measurement]:
    machine = tiny.machine()
    machine = replace(machine, storage=replace(machine.storage, cache=str(folder / "cache")))
    data = data or tiny.dataset()
    network = build(job, data)
    weights_before = {name: value.clone() for name, value in network.module.state_dict().items()}
    random_state = torch.random.get_rng_state()
    facts = inspection.inspect_workload(data, network.module)
    job_plan = plan.resolve(job, machine, facts)
    inputs = Assembly(
        job,
        machine,
        job_plan,
        folder,
        data,
        network,
        tiny.QuietSignals(),
        facts,
        (lambda line: None) if messages is None else messages.append,
    )
    measurements = MicroBatchSearch(inputs).measure()
    assert all(torch.equal(weights_before[name], value) for name, value in network.module.state_dict().items())
    assert torch.equal(random_state, torch.random.get_rng_state())
    assert not recompute.is_recomputed(network.module)
    assert network.module.training
    return measurements


def test_only_where_the_job_says_auto(tmp_path: Path, limit_memory: Any) -> None:
    limit_memory(16)
    assert measure_sizes(tiny.job(), tmp_path) == {}
    assert measure_sizes(tiny.job(optimize="micro_batch: 8"), tmp_path) == {}


def test_the_whole_batch_where_it_fits(tmp_path: Path, limit_memory: Any) -> None:
    limit_memory(200)
    measurements = measure_sizes(make_job(), tmp_path)
    assert (set(measurements), measurements["micro_batch"].value) == ({"micro_batch"}, "off")
    assert says(measurements["micro_batch"].text, "gib-peak-memory-micro", "1.0", 32, "1.2")


def test_a_batch_that_fits_but_for_its_evaluation_is_named(tmp_path: Path, limit_memory: Any) -> None:
    """64 samples of validation at a time would be 64 MiB."""
    limit_memory(40)
    assert measure_sizes(make_job(), tmp_path)["micro_batch"].value == 32


def test_batchnorm_splits_as_little_as_possible_and_says_so(tmp_path: Path, limit_memory: Any) -> None:
    limit_memory(21)
    measurements = measure_sizes(make_job(), tmp_path)
    assert measurements["micro_batch"].value == 20
    assert says(measurements["micro_batch"].text, "whole-batch-fit-batchnorm-sees", 20)


def test_no_part_of_a_single_sample_for_batchnorm(tmp_path: Path, limit_memory: Any) -> None:
    """A micro-batch of 31 would leave a single sample of 32."""
    limit_memory(31)
    trials = [SizeTrial(2, 2, 1.0), SizeTrial(31, 40, 1.0)]
    search_result = SizeSearchResult(0, 40, False, trials, largest=31)
    assert micro_batch.choose_size(search_result, {}, lambda count: 32 % count == 1) == 30


def test_blocks_are_recomputed_where_not_even_the_smallest_part_fits(tmp_path: Path, limit_memory: Any) -> None:
    limit_memory(1)
    measurements = measure_sizes(make_job("{name: resnet18, width: 2}"), tmp_path)
    assert (measurements["micro_batch"].value, measurements["gradient_checkpointing"].value) == (4, True)
    assert says(measurements["gradient_checkpointing"].text, "without-even-smallest-micro")


def test_blocks_are_recomputed_if_batchnorm_then_gets_the_whole_batch(tmp_path: Path, limit_memory: Any) -> None:
    limit_memory(20)
    measurements = measure_sizes(make_job("{name: resnet18, width: 2}"), tmp_path)
    assert (measurements["micro_batch"].value, measurements["gradient_checkpointing"].value) == ("off", True)
    assert ends_with(measurements["gradient_checkpointing"].text, "batchnorm-sees-whole-batch")


@pytest.mark.parametrize(
    ("without", "with_it", "normed", "explanation"),
    [
        ({4: 100.0}, {8: 104.0}, 0, ""),
        (
            {4: 100.0},
            {8: 106.0, 4: 90.0},
            0,
            "106 samples/s with gradient checkpointing, 100 with smaller micro-batches",
        ),
        ({}, {}, 20, ""),
        ({}, {}, 32, "with gradient checkpointing all 32 samples fit at once, so BatchNorm sees the whole batch"),
    ],
)
def test_when_recomputing_pays(
    without: dict[int, float], with_it: dict[int, float], normed: int, explanation: str
) -> None:
    assert micro_batch.explain_recomputing(without, with_it, normed, 32) == explanation


@pytest.mark.parametrize(
    ("model", "optimize"),
    [("{name: small-cnn, width: 4}", ""), ("{name: resnet18, width: 2}", ", gradient_checkpointing: false")],
)
def test_nothing_fits_if_blocks_cannot_be_recomputed(
    tmp_path: Path, limit_memory: Any, model: str, optimize: str
) -> None:
    limit_memory(1)
    measurements = measure_sizes(make_job(model, optimize), tmp_path)
    assert set(measurements) == {"micro_batch"}
    assert measurements["micro_batch"].value == 2
    assert says(measurements["micro_batch"].text, "micro-batch-fit-mib", 2, 1001)


def test_the_fastest_of_those_that_fit() -> None:
    search_result = SizeSearchResult(0, 100, False, [SizeTrial(n, n, 1.0) for n in (1, 2, 4, 8, 16)], largest=16)
    assert micro_batch.choose_size(search_result, {16: 100.0, 8: 104.0, 4: 80.0}) == 16
    assert micro_batch.choose_size(search_result, {16: 100.0, 8: 106.0, 4: 80.0}) == 8
    assert micro_batch.choose_size(replace(search_result, fits_whole_batch=True), {16: 100.0, 8: 90.0}) == "off"
    assert micro_batch.choose_size(replace(search_result, fits_whole_batch=True), {16: 100.0, 8: 190.0}) == 8


def test_speeds_are_measured_where_splitting_changes_nothing(
    tmp_path: Path, limit_memory: Any, monkeypatch: Any
) -> None:
    limit_memory(200)
    monkeypatch.chdir(tmp_path)
    job = case(tmp_path, "one text head", "train: {epochs: 30, batch_size: 16}\noptimize: {micro_batch: auto}\n")
    text = measure_sizes(job, tmp_path, data=load(job))["micro_batch"].text
    assert "; samples/s: 16: " in text
    assert ", 8: " in text
    assert ", 4: " in text


def test_texts_are_tried_at_their_longest(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    job = case(tmp_path, "one text head", "train: {batch_size: 8}\n")
    dataset = load(job)
    batch = next(size_search._repeat_longest(dataset.train, 8, 0, False))
    assert batch.inputs[0].shape == (8, int(dataset.train.lengths.max()))  # type: ignore[attr-defined]


def test_texts_cut_by_tokens_fit_whatever_the_batch(tmp_path: Path, limit_memory: Any, monkeypatch: Any) -> None:
    """Training and evaluation compute a few texts at a time, so the batch is not what takes memory."""
    limit_memory(4)
    monkeypatch.chdir(tmp_path)
    for unpadding, fits in (("16", "off"), ("off", 3)):
        optimize = f"optimize: {{micro_batch: auto, unpadding: {unpadding}, gradient_checkpointing: false}}\n"
        job = case(tmp_path, "one text head", "train: {epochs: 1, batch_size: 16}\n" + optimize)
        assert measure_sizes(job, tmp_path, data=load(job))["micro_batch"].value == fits


def test_training_is_that_of_naming_the_size_and_a_resume_keeps_it(
    tmp_path: Path, limit_memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(7)  # of which the copy of a checkpoint takes a part
    monkeypatch.chdir(tmp_path)
    text = "train: {{epochs: 2, batch_size: 16}}\noptimize: {{measure: off, gradient_checkpointing: false, micro_batch: {}}}\n"
    auto_run = assemble_run(tmp_path / "auto", case(tmp_path, "image arrays", text.format("auto")))
    row = next(d for d in auto_run.plan.decisions if d.name == "micro_batch")
    assert (row.value, row.source, row.effect) == (6, "measured", "training")
    assert row.evidence is not None
    assert says(row.evidence, "mib-peak-memory-micro", 1006, 6)
    named_run = assemble_run(tmp_path / "named", case(tmp_path, "image arrays", text.format(6)))
    assert tiny.losses(auto_run, 6) == tiny.losses(named_run, 6)
    weights = named_run.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in auto_run.model.state_dict().items())
    limit_memory(200)
    stored_values = plan.load(tmp_path / "auto" / "plan.json").values()
    resumed_run = assemble_run(tmp_path / "auto", case(tmp_path, "image arrays", text.format("auto")), stored_values)
    assert resumed_run.plan.value("micro_batch") == resumed_run.step.forward.micro_batch == 6
    assert json.loads((tmp_path / "auto" / "plan.json").read_text())["seen"]["micro_batch"]["same"]
