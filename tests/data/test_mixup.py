"""Mixup and cutmix: the formula, the labels, and draws from (seed, step) alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data import mixup
from drivetrain.data.dataset import Batch, Head
from drivetrain.data.mixup import draw_rectangle, mix
from drivetrain.job.data import Cutmix, Mixup
from drivetrain.tasks.image.job import ImageClassificationJob, ImageJob
from tests.axes import each_once
from tests.data.mixed_batch import mix_batch

torch.set_num_threads(1)
HEADS = {"": Head("", ("a", "b", "c"))}
COUNT = 6


def images() -> torch.Tensor:
    return torch.rand(COUNT, 2, 12, 10, generator=torch.Generator().manual_seed(0))


def labels() -> torch.Tensor:
    return torch.tensor([0, 1, 2, 1, 0, 2])


def partner_of(values: torch.Tensor, original: torch.Tensor, share: float) -> list[int]:
    """Which other row each row was blended with, found by trying all."""
    partners = []
    for i, row in enumerate(values.double()):
        errors = [(row - (share * original[i] + (1 - share) * other)).abs().max() for other in original.double()]
        partners.append(int(torch.stack(errors).argmin()))
        assert min(errors) < 1e-6
    return partners


@pytest.mark.parametrize(("step", "shape"), each_once(range(5), [(COUNT, 2, 12, 10), (COUNT, 20, 3), (COUNT, 4)]))
def test_mixup_is_its_formula(step: int, shape: tuple[int, ...]) -> None:
    samples = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    (inputs,), targets = mix_batch((samples,), {"": labels()}, HEADS, 7, step, Mixup(alpha=0.4, probability=1.0))
    soft_labels = targets[""]
    assert soft_labels.shape == (COUNT, 3)
    assert torch.allclose(soft_labels.sum(dim=1), torch.ones(COUNT))
    # The share is read from a row whose partner has another label; then both formulas must hold with one pairing.
    hard_labels = torch.nn.functional.one_hot(labels(), 3).double()
    own_shares = soft_labels[torch.arange(COUNT), labels()]
    share = float(own_shares[own_shares < 0.999999].max()) if (own_shares < 0.999999).any() else 1.0
    partner = partner_of(inputs.flatten(1), samples.flatten(1).double(), share)
    assert sorted(partner) == list(range(COUNT))
    assert torch.allclose(soft_labels.double(), share * hard_labels + (1 - share) * hard_labels[partner], atol=1e-6)


def test_shares_follow_the_beta_distribution() -> None:
    one = torch.tensor([[0.0], [1.0]])
    shares = []
    for step in range(3000):
        (inputs,), _ = mix_batch((one,), {}, HEADS, 0, step, Mixup(alpha=0.4, probability=1.0))
        if float(inputs[0]) > 0:
            # Row 0 is 1 - share; unchanged rows were paired with themselves.
            shares.append(1 - float(inputs[0]))
    assert 1400 < len(shares) < 1600
    assert abs(np.mean(shares) - 0.5) < 0.03
    # Var of Beta(a, a) is 1 / (4 (2a + 1)).
    assert abs(np.var(shares) - 1 / (4 * 1.8)) < 0.01


@pytest.mark.parametrize("step", range(12))
def test_cutmix_takes_one_rectangle_and_labels_by_area(step: int) -> None:
    x = torch.arange(COUNT).float().view(-1, 1, 1, 1).expand(COUNT, 1, 12, 10).contiguous()
    (inputs,), targets = mix_batch((x,), {"": labels()}, HEADS, 3, step, cutmix=Cutmix(probability=1.0))
    hard = torch.nn.functional.one_hot(labels(), 3).float()
    for i in range(COUNT):
        patch = inputs[i, 0] != i
        if not patch.any():
            continue
        (other,) = inputs[i, 0][patch].unique().long().tolist()
        rows, columns = patch.any(dim=1), patch.any(dim=0)
        assert int(patch.sum()) == int(rows.sum()) * int(columns.sum())
        share = 1 - float(patch.float().mean())
        assert torch.allclose(targets[""][i], share * hard[i] + (1 - share) * hard[other], atol=1e-6)
    assert torch.equal(x[:, 0, 0, 0], torch.arange(COUNT).float())


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_rectangle_has_its_area_unless_cut_off(share: float) -> None:
    areas = []
    for seed in range(300):
        top, bottom, left_edge, right = draw_rectangle(np.random.default_rng(seed), 40, 60, share)
        assert 0 <= top <= bottom <= 40
        assert 0 <= left_edge <= right <= 60
        areas.append((bottom - top) * (right - left_edge) / 2400)
    assert max(areas) == pytest.approx(1 - share, abs=0.05)


def test_random_numbers_depend_on_seed_and_step_only() -> None:
    def once(seed: int, step: int) -> torch.Tensor:
        return mix_batch((images(),), {"": labels()}, HEADS, seed, step, Mixup(), Cutmix())[0][0]

    torch.manual_seed(1)
    first = once(1, 1)
    torch.manual_seed(2)
    np.random.default_rng(5).random()
    assert torch.equal(once(1, 1), first)
    assert not torch.equal(once(1, 2), first)
    assert not torch.equal(once(2, 1), first)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", [Mixup, Cutmix])
def test_share_of_steps_that_are_mixed(kind: Any, probability: float) -> None:
    spec = kind(probability=probability)
    options = {"mixup": spec} if kind is Mixup else {"cutmix": spec}
    changed = [
        mix_batch((images(),), {"": labels()}, HEADS, 0, step, **options)[1][""].is_floating_point()
        for step in range(1000)
    ]
    assert abs(np.mean(changed) - probability) < 0.06


def test_of_mixup_and_cutmix_one_is_picked_with_equal_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = mixup.draw_rectangle
    monkeypatch.setattr(mixup, "draw_rectangle", lambda *given: (calls.append("cutmix"), real(*given))[1])
    mixed_steps = 0
    for step in range(1000):
        y = mix_batch((images(),), {"": labels()}, HEADS, 0, step, Mixup(probability=0.5), Cutmix(probability=1.0))[1][
            ""
        ]
        mixed_steps += y.is_floating_point()
    assert abs(len(calls) - 500) < 60
    assert abs(mixed_steps - 750) < 60


def test_targets_of_every_kind() -> None:
    heads = {
        "cause": Head("cause", ("x", "y", "z")),
        "tags": Head("tags", ("p", "q"), several=True),
        "size": Head("size", columns=("w",)),
    }
    tags, size = torch.rand(COUNT, 2).round(), torch.randn(COUNT, 1)
    targets_by_head = {"cause": labels(), "tags": tags, "size": size}
    _, targets = mix_batch((images(),), targets_by_head, heads, 0, 4, Mixup(alpha=1.0))
    assert targets["cause"].shape == (COUNT, 3)
    hard = torch.nn.functional.one_hot(labels(), 3).float()
    plain_targets = torch.cat([hard, tags, size], dim=1)
    mixed_targets = torch.cat([targets["cause"], targets["tags"], targets["size"]], dim=1)
    changed = (mixed_targets - plain_targets).abs().sum(dim=1)
    assert (changed > 0).any()
    # One share and one pairing for all heads: some row of one pair solves for the share, which then fits all rows.
    ratios = []
    for i in range(COUNT):
        for j in range(COUNT):
            span = plain_targets[j] - plain_targets[i]
            if span.abs().sum() > 0 and changed[i] > 0:
                share = float(((mixed_targets[i] - plain_targets[i]) @ span) / (span @ span))
                if torch.allclose(plain_targets[i] + share * span, mixed_targets[i], atol=1e-5):
                    ratios.append(share)
    assert len(ratios) >= int((changed > 0).sum())
    assert max(ratios) - min(ratios) < 1e-4


def test_probabilities_can_be_mixed_again() -> None:
    soft = torch.rand(COUNT, 3)
    _, targets = mix_batch((images(),), {"": soft}, HEADS, 0, 1, Mixup(alpha=1.0))
    assert torch.allclose(targets[""].sum(dim=0), soft.sum(dim=0), atol=1e-5)
    assert not torch.equal(targets[""], soft)


def test_several_inputs_are_mixed_with_the_same_pairing() -> None:
    x = torch.rand(COUNT, 5)
    (a, b), _ = mix_batch((x, 2 * x), {}, HEADS, 0, 1, Mixup(alpha=1.0))
    assert torch.allclose(2 * a, b, atol=1e-6)


def job(**augment: Any) -> ImageJob:
    return ImageClassificationJob.model_validate(
        {"name": "t", "task": "image-classification", "data": {"train": "x", "augment": augment}, "train": {"seed": 7}}
    )


def test_a_job_says_what_is_mixed() -> None:
    batch = Batch(np.arange(COUNT), (images(),), {"": labels()})
    plain_batch = mix(batch, HEADS, job(), 0)
    assert plain_batch.inputs[0] is batch.inputs[0]
    assert torch.equal(plain_batch.targets[""], labels())
    mixed_batch = mix(batch, HEADS, job(mixup={"alpha": 0.4}), 3)
    (inputs,), targets = mix_batch(batch.inputs, batch.targets, HEADS, 7, 3, Mixup(alpha=0.4))
    assert torch.equal(mixed_batch.inputs[0], inputs)
    assert torch.equal(mixed_batch.targets[""], targets[""])
    assert np.array_equal(mixed_batch.ids, batch.ids)


def test_a_single_sample_has_no_partner() -> None:
    batch = Batch(np.arange(1), (images()[:1],), {"": labels()[:1]})
    assert torch.equal(mix(batch, HEADS, job(mixup={}), 0).inputs[0], images()[:1])
