"""Cached activations of repeating augmentation equal the whole network in each view, with the same bits again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import inspection
from drivetrain.optimizations import feature_cache
from drivetrain.training.evaluation.validation import evaluate
from tests import tiny
from tests.models.cached_features import assemble_run, compute_gradient, job

AUGMENTED = "image_size: 16, augment: {flip: true, crop_padding: 2, erasing: {}, views: 2}"


def make_augmented_job(folder: Path) -> Job:
    job(folder, "resnet18")
    file = folder / "job.yaml"
    file.write_text(file.read_text().replace("image_size: 16, ", f"{AUGMENTED}, ").replace("epochs: 2", "epochs: 5"))
    return job_spec.load(file)


def test_views_are_those_of_the_augmented_images_and_come_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    augmented_job = make_augmented_job(tmp_path)
    uncached, cached = assemble_run(tmp_path, augmented_job, False), assemble_run(tmp_path, augmented_job, True)
    facts = inspection.inspect_workload(uncached.dataset, uncached.model)
    assert facts.prefix_bytes == sum(
        rows.flat.nbytes for cached_rows in cached.dataset.cache.values() for rows in cached_rows
    )
    assert (
        "in 2 of 5 epochs"
        in feature_cache.choose(augmented_job, tiny.machine(), replace(facts, prefix_work=1e9)).reason
    )
    for epoch in range(4):
        expected, cached_gradient = compute_gradient(uncached, epoch), compute_gradient(cached, epoch)
        torch.testing.assert_close(cached_gradient, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    output = capsys.readouterr().out
    assert [output.count(f", view {n} of 2, computed once for ") for n in (1, 2)] == [1, 1]
    ids = np.arange(8)
    (raw,) = uncached.dataset.train.gather(ids)
    first, second, third = (uncached.dataset.prepare((raw,), ids, epoch)[0] for epoch in range(3))
    assert torch.equal(first, third)
    assert not torch.equal(first, second)
    (cached_metrics, _), (metrics, _) = evaluate(cached), evaluate(uncached)
    assert cached_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-5)


def test_views_killed_and_resumed_give_the_same_bits(tmp_path: Path) -> None:
    augmented_job = make_augmented_job(tmp_path)
    uninterrupted, resumed = assemble_run(tmp_path, augmented_job, True), assemble_run(tmp_path, augmented_job, True)
    for epoch in (0, 1, 2):
        compute_gradient(uninterrupted, epoch)
    assert torch.equal(compute_gradient(uninterrupted, 3), compute_gradient(resumed, 3))
