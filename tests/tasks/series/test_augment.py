"""Augmentation of windows: its statistics, and that it depends on (seed, epoch, window) only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.data.dataset import keep_unchanged
from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.tasks.series import augment
from drivetrain.tasks.series.augment import SeriesPreprocessing
from drivetrain.tasks.series.job import SeriesAugment, TimeMask, TimeWarp, WindowWarp
from drivetrain.training import batch_inputs
from tests import tiny

COUNT, LENGTH = 600, 40
IDS = np.arange(COUNT)
EVERY = "{jitter: 0.1, scaling: 0.2, time_warp: {}, window_warp: {}, channel_dropout: 0.2, time_mask: {}}"
torch.set_num_threads(1)


def augment_windows(
    windows: torch.Tensor, spread: tuple[float, ...] = (1.0, 2.0, 0.0), epoch: int = 0, **spec: object
) -> torch.Tensor:
    (augmented_windows,) = SeriesPreprocessing(SeriesAugment.model_validate(spec), 3, spread)(
        (windows,), IDS[: len(windows)], epoch
    )
    return augmented_windows


def ramp() -> torch.Tensor:
    """Windows whose value is the time."""
    return torch.arange(LENGTH, dtype=torch.float32)[None, :, None].expand(COUNT, LENGTH, 2)


def test_jitter_is_a_share_of_each_channels_deviation() -> None:
    noise = augment_windows(torch.zeros(COUNT, LENGTH, 3), jitter=0.05)
    assert noise.std(dim=(0, 1)).tolist() == pytest.approx([0.05, 0.1, 0.0], rel=0.02)
    assert noise.mean(dim=(0, 1)).abs().max() < 0.002
    flat = noise[:, :, 0].flatten()
    assert float((flat.abs() > 0.1).double().mean()) == pytest.approx(0.0455, abs=0.004)  # two deviations
    assert abs(float(torch.corrcoef(torch.stack([flat[1:], flat[:-1]]))[0, 1])) < 0.02
    assert abs(float(torch.corrcoef(noise[:, :, :2].flatten(0, 1).T)[0, 1])) < 0.02


def test_scaling_has_one_factor_for_each_channel_of_a_window() -> None:
    factors = augment_windows(torch.full((COUNT, LENGTH, 3), 4.0), scaling=0.1) / 4
    assert torch.equal(factors, factors[:, :1].expand_as(factors))
    assert factors[:, 0].std(dim=0).tolist() == pytest.approx([0.1] * 3, rel=0.1)
    assert factors[:, 0].mean(dim=0).tolist() == pytest.approx([1.0] * 3, abs=0.02)
    assert augment_windows(torch.ones(COUNT, LENGTH, 3), scaling=5.0).min() == 0


@pytest.mark.parametrize("spec", [{"time_warp": {"std": 2.0}}, {"window_warp": {"share": 0.3}}])
def test_warped_time_runs_forward_between_the_same_ends(spec: dict[str, object]) -> None:
    times = augment_windows(ramp(), (1.0, 1.0), **spec)  # type: ignore[arg-type]
    assert torch.equal(times[:, [0, -1]], ramp()[:, [0, -1]])
    assert (times[:, 1:] > times[:, :-1]).all()
    assert torch.equal(times[:, :, 0], times[:, :, 1])
    assert float((times - ramp()).abs().max()) > 2
    kind = next(iter(spec))
    half = augment_windows(ramp(), (1.0, 1.0), **{kind: {**spec[kind], "probability": 0.5}})  # type: ignore[arg-type, dict-item]
    still = (half == ramp()).all(dim=2).all(dim=1)
    assert float(still.double().mean()) == pytest.approx(0.5, abs=0.06)
    assert torch.equal(half[~still], times[~still])


def test_a_smooth_warp_has_the_speed_that_is_asked_for() -> None:
    draws = np.random.default_rng(0).random((4000, 5))
    steps = np.diff(augment.draw_time_warp(draws, 41, TimeWarp(std=0.1, knots=2)), axis=1)
    # Half a step after the first knot; all speeds are divided by their mean, which varies a little.
    assert steps[:, 0].std() == pytest.approx(0.1, rel=0.15)
    assert steps.mean() == pytest.approx(1.0)
    # From step to step the speed changes far less than between two independent speeds.
    assert np.abs(np.diff(steps, axis=1)).mean() < 0.02


def test_a_window_warp_plays_a_part_at_one_of_two_speeds() -> None:
    draws = np.array([[0.0, 0.5, 0.9], [0.0, 0.5, 0.1]])
    fast, slow = augment.draw_window_warp(draws, 101, WindowWarp(share=0.2, speeds=(0.5, 2.0)))
    # Twenty rows from row 40 become ten; what is left is stretched to the same length.
    stretched = 90 / 100
    assert np.diff(fast)[[10, 50, 90]] == pytest.approx([stretched, 2 * stretched, stretched])
    assert np.diff(slow)[[10, 50, 90]] == pytest.approx([1.2, 0.6, 1.2])
    assert (fast[0], fast[-1]) == (0, 100)


def test_channels_are_dropped_but_not_all() -> None:
    windows = augment_windows(torch.ones(COUNT, LENGTH, 3), channel_dropout=0.3)
    assert torch.equal(windows, windows[:, :1].expand_as(windows))
    channel_mask = windows[:, 0]
    assert channel_mask.sum(dim=1).min() == 1
    assert float((channel_mask == 0).double().mean()) == pytest.approx(0.3 - 0.3**3 / 3, abs=0.03)
    assert augment_windows(torch.ones(9, LENGTH, 1), (1.0,), channel_dropout=0.9).min() == 1


def test_a_mask_hides_up_to_a_share_of_the_rows() -> None:
    hidden = (
        augment_windows(torch.ones(COUNT, LENGTH, 2), (1.0, 1.0), time_mask={"share": 0.2, "probability": 0.5}) == 0
    )
    assert torch.equal(hidden[:, :, 0], hidden[:, :, 1])
    counts = hidden[:, :, 0].sum(dim=1)
    assert sorted(set(counts.tolist())) == list(range(9))
    assert float((counts > 0).double().mean()) == pytest.approx(0.5, abs=0.06)
    edges = torch.diff(hidden[:, :, 0].int(), dim=1).abs().sum(dim=1)
    assert edges.max() <= 2
    assert hidden[:, 0].any()
    assert hidden[:, -1].any()
    assert not augment.draw_masked_rows(np.zeros((3, 3)), 1, TimeMask()).any()


def series(folder: Path, augmented: str, task: str = "classification", train: str = "") -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(48, 24, 3)).astype(np.float32) * (3, 1, 0) + 7
    y = np.arange(48) % 3 if task == "classification" else x[:, -1, 0]
    np.savez(folder / "x.npz", x=x, y=y)
    path = folder / "job.yaml"
    path.write_text(
        f"name: t\ntask: series-{task}\ndata: {{train: x.npz, augment: {augmented}}}\nmodel: {{cnn_channels: [4], lstm_hidden: 4}}\n"
        f"train: {{batch_size: 12, seed: 5{train}}}\noptimize: {{cpu_threads: 1}}\n"
    )
    return path


def test_a_window_does_not_depend_on_its_batch(tmp_path: Path) -> None:
    """Nor on workers, processes, micro-batches or a resume: only on seed, epoch and sample."""
    run = tiny.assemble_plain_run(job_spec.load(series(tmp_path, EVERY)), tmp_path)
    data, ids = run.dataset, np.arange(len(run.dataset.train))
    full_batch = data.prepare(data.train.gather(ids), ids, 2)[0]
    order = np.random.default_rng(1).permutation(ids)
    for part in np.array_split(order, 5):
        assert torch.equal(data.prepare(data.train.gather(part), part, 2)[0], full_batch[torch.from_numpy(part)])
    reloaded_data = load(job_spec.load(tmp_path / "job.yaml"))
    assert torch.equal(reloaded_data.prepare(reloaded_data.train.gather(ids), ids, 2)[0], full_batch)
    raw = data.train.gather(ids)[0]
    assert not torch.equal(full_batch, data.prepare((raw,), ids, 3)[0])
    other = load(job_spec.load(tmp_path / "job.yaml", ["train.seed=6", "data.validation=0.1"]))
    assert isinstance(other.prepare, SeriesPreprocessing)
    assert not torch.equal(full_batch, other.prepare((raw,), ids, 2)[0])
    # The constant channel gets no noise, and validation nothing at all.
    assert data.prepare.spread == pytest.approx((1.0, 1.0, 0.0))  # type: ignore[attr-defined]
    assert data.prepare((raw,), ids, None)[0] is raw
    assert torch.equal(raw, data.train.gather(ids)[0])


def test_workers_and_resume_give_the_same_batches(tmp_path: Path) -> None:
    def read_inputs(workers: int, first: int) -> list[torch.Tensor]:
        run = tiny.assemble_plain_run(job_spec.load(series(tmp_path, EVERY)), tmp_path)
        run.batches.workers = workers
        return [
            batch_inputs.preprocess(run, batch, epoch).inputs[0]
            for epoch in range(first, 3)
            for batch in run.batches.epoch(epoch)
        ]

    plain = read_inputs(0, 0)
    for other in (read_inputs(2, 0), [*plain[:4], *read_inputs(0, 1)]):
        assert len(other) == len(plain)
        assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))


def test_without_augmentation_windows_are_taken_as_they_are(tmp_path: Path) -> None:
    assert load(job_spec.load(series(tmp_path, "{mixup: {}}"))).prepare is keep_unchanged


@pytest.mark.parametrize("option", ["scaling: 0.1", "time_warp: {}", "window_warp: {}"])
def test_a_regression_refuses_what_would_falsify_its_numbers(tmp_path: Path, option: str) -> None:
    with pytest.raises(SpecError, match=r"data.augment.\w+: changes the (speed|amplitude) of a window"):
        job_spec.load(series(tmp_path, f"{{jitter: 0.1, {option}}}", "regression"))
    job = job_spec.load(series(tmp_path, "{jitter: 0.1, time_mask: {}, channel_dropout: 0.1}", "regression"))
    assert np.isfinite(tiny.losses(tiny.assemble_plain_run(job, tmp_path), 2)).all()
