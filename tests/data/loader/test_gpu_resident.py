"""Samples that stay on the device: the same ones, the same losses, and the host where they do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import fetch
from drivetrain.data.loader.gpu_resident import GpuResidentSplit, move_to_device
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.optimizations import gpu_resident_data
from tests import tiny
from tests.axes import each_once
from tests.data.loader.batch_pairs import assert_equal
from tests.messages import says
from tests.task_cases import CASES


def data(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Job, Dataset]:
    """Each task on raw files."""
    CASES[name].files(folder)
    monkeypatch.chdir(folder)
    job = job_spec.check(parse(f"name: tiny\n{CASES[name].text}train: {{batch_size: 16}}\n", "tiny.yaml"))
    return job, load(job)


FIXED = [name for name in CASES if "text" not in name]


@pytest.mark.parametrize(("workers", "name"), each_once([0, 1], FIXED))
def test_resident_samples_are_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, workers: int
) -> None:
    if workers and name != FIXED[0]:
        pytest.skip("one kind is enough")
    _, dataset = data(tmp_path, name, monkeypatch)
    resident_data = move_to_device(replace(dataset, decoded=False), torch.device("cpu"), 4096, workers)
    assert isinstance(resident_data.train, GpuResidentSplit)
    assert move_to_device(resident_data, torch.device("cpu"), 4096).train is resident_data.train
    for split, resident_split in ((dataset.train, resident_data.train), (dataset.validation, resident_data.validation)):
        ids = np.arange(len(split))[::-1].copy()
        (one,), (two,) = fetch(split, [ids]), fetch(resident_split, [ids])
        assert_equal(one, two)
        assert resident_split.title(0) == split.title(0)


def test_images_stay_as_they_are_stored_and_losses_too(tmp_path: Path) -> None:
    """`apply` as the trainer calls it, with the CPU for a GPU: the same batches, augmentation and losses."""
    plain, resident_run = (tiny.assemble_run(tmp_path, tiny.job()) for _ in range(2))
    gpu_resident_data.apply(resident_run, True)
    assert gpu_resident_data.effective(resident_run)
    assert not gpu_resident_data.effective(plain)
    assert tiny.losses(resident_run, 8) == tiny.losses(plain, 8)


def test_samples_that_do_not_fit_after_all_stay_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training_run, plain = (tiny.assemble_run(tmp_path, tiny.job()) for _ in range(2))

    def full(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", full)
        gpu_resident_data.apply(training_run, True)
    assert not gpu_resident_data.effective(training_run)
    assert training_run.dataset.cache == {}
    assert says((tmp_path / "events.jsonl").read_text(), "samples-stay-host-memory")
    assert tiny.losses(training_run, 4) == tiny.losses(plain, 4)
