"""BatchNorm of one value per channel needs two samples: known before the first step, and no sample is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.data.dataset import Batch
from drivetrain.data.loader.batches import Batches
from drivetrain.errors import OutOfMemory, SpecError
from drivetrain.job import Job
from drivetrain.job.model import Freeze
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.models.build import BuiltModel
from drivetrain.training import run as runs
from drivetrain.training import start_checks
from tests import tiny
from tests.messages import says


class Flat(torch.nn.Module):
    """Normalizes one value per channel, as after a global pooling."""

    def __init__(self, norm: type[torch.nn.Module] = torch.nn.BatchNorm1d) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), norm(8), torch.nn.Linear(8, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(inputs)
        return result


def assemble_run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    network: torch.nn.Module,
    train: str = "",
    samples: int = 49,
    micro_batch: int | None = None,
) -> runs.Run:
    monkeypatch.setattr(tiny, "build", lambda *_: BuiltModel(network, "own", {}, Freeze()))
    monkeypatch.setattr(tiny, "dataset", lambda dataset=tiny.dataset: dataset(samples))
    settings = {"micro_batch": micro_batch} if micro_batch else None
    return tiny.assemble_run(folder, tiny.job(train), settings=settings)  # type: ignore[arg-type]


def sizes(batches: Batches, epoch: int = 0) -> list[int]:
    return [len(ids) for ids in batches.order(epoch)]


def test_a_last_sample_joins_the_batch_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = assemble_run(tmp_path, monkeypatch, Flat())
    assert sizes(run.batches) == [16, 16, 17]
    assert [run.batches.size(number) for number in range(run.batches.per_epoch)] == [16, 16, 17]
    assert sorted(np.concatenate(run.batches.order(1)).tolist()) == list(range(49))
    assert [len(ids) for ids in run.batches.order(1, start=2)] == [17]
    assert [len(ids) for ids in run.batches.order(1, start=3)] == []
    assert run.total_steps == 9
    assert all(map(np.isfinite, tiny.losses(run, 6)))
    assert says((tmp_path / "events.jsonl").read_text().splitlines(), "it-joins-one-before")


@pytest.mark.parametrize(
    ("network", "samples", "expected"),
    [
        (Flat(torch.nn.LayerNorm), 49, [16, 16, 16, 1]),
        (Flat(), 50, [16, 16, 16, 2]),
        (Flat(), 48, [16, 16, 16]),
        (Flat(), 1, [1]),
        # A picture has many values per channel.
        (torch.nn.Sequential(torch.nn.BatchNorm2d(1), Flat(torch.nn.LayerNorm)), 49, [16, 16, 16, 1]),
    ],
)
def test_other_jobs_have_the_batches_they_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: torch.nn.Module, samples: int, expected: list[int]
) -> None:
    assert sizes(assemble_run(tmp_path, monkeypatch, network, samples=samples).batches) == expected


def test_the_trial_leaves_the_network_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Flat()
    network.layers[1].eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    from drivetrain.models import dry_run

    assert dry_run.needs_two_samples(network, [], tiny.dataset(), torch.device("cpu"))
    assert not dry_run.needs_two_samples(network, list(network.modules()), tiny.dataset(), torch.device("cpu"))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    assert not network.layers[1].training


@pytest.mark.parametrize(
    ("micro", "expected"), [(16, [17, 16]), (8, [8, 8, 8, 9]), (2, [2] * 15 + [3]), (10, [10, 10, 10, 3])]
)
def test_micro_batches_leave_no_single_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro: int, expected: list[int]
) -> None:
    run = assemble_run(tmp_path, monkeypatch, Flat(), samples=66)
    run.step.use_micro_batch(micro)
    batch = Batch(np.arange(33), (torch.zeros(33, 1, 8, 8),), {"": torch.zeros(33, dtype=torch.int64)})
    parts = list(run.step.forward.split(batch))
    assert sorted(map(len, parts)) == sorted(expected)
    assert np.concatenate([part.ids for part in parts]).tolist() == list(range(33))


def test_memory_is_not_halved_to_one_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = assemble_run(tmp_path, monkeypatch, Flat())
    error = MemoryError("CUDA out of memory")
    run.step._halve_micro_batch(3, error)
    assert run.step.forward.micro_batch == 2
    with pytest.raises(OutOfMemory, match="with micro-batch 2"):
        run.step._halve_micro_batch(3, error)


def test_sizes_of_one_are_refused_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError) as caught:
        assemble_run(tmp_path, monkeypatch, Flat(), micro_batch=1)
    assert "optimize.micro_batch" in str(caught.value)
    assert says(str(caught.value), "train-single-sample")


def test_shares_of_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = assemble_run(tmp_path, monkeypatch, Flat())
    with pytest.raises(SpecError, match=r"train\.batch_size: 16 for 16 processes"):
        start_checks.refuse_single_samples(run.job, run.step.forward, 16)


def job(folder: Path, model: str, samples: int) -> Job:
    images = np.random.default_rng(0).integers(0, 255, (samples, 8, 8), dtype=np.uint8)
    labels = np.arange(samples) % 3
    np.savez(folder / "train.npz", images=images, labels=labels)
    np.savez(folder / "validation.npz", images=images[::-1] // 2, labels=labels[::-1])
    text = f"""
name: small
task: image-classification
data: {{train: {folder}/train.npz, validation: {folder}/validation.npz}}
model: {model}
train: {{epochs: 1, batch_size: 16}}
"""
    return job_spec.check(parse(text, "small.yaml"))


def test_the_built_in_resnet_on_small_pictures_trains_on_all_of_them(tmp_path: Path) -> None:
    """Its last feature map is one pixel."""
    run = tiny.assemble_plain_run(job(tmp_path, "resnet18", 33), tmp_path)
    assert sizes(run.batches) == [16, 17]
    assert all(map(np.isfinite, tiny.losses(run, 2)))
    assert sizes(tiny.assemble_plain_run(job(tmp_path, "small-cnn", 33), tmp_path).batches) == [16, 16, 1]
