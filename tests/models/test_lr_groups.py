"""Learning rates by layer: torch's own parameter groups to the bit, and patterns that would do nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from drivetrain.errors import SpecError
from drivetrain.training import trained_layers
from tests import tiny
from tests.training.fitted_run import fit_run, read_rows
from tests.training.optimizer_kinds import KINDS

torch.set_num_threads(1)
GROUPS = "lr_groups: {'features.[0-6]': 0.05, features: 0.3}"


@pytest.mark.parametrize("spec", KINDS)
def test_every_layer_follows_the_schedule_at_its_factor(spec: str, tmp_path: Path) -> None:
    """Against an optimizer of torch with a group for each parameter, whose rate is set by hand."""
    plain_folder, grouped_folder = (tmp_path / name for name in ("plain", "ours"))
    for folder in (plain_folder, grouped_folder):
        folder.mkdir()
    job = tiny.job(f"optimizer: {spec}, clip_norm: null, {GROUPS}")
    run = tiny.assemble_run(grouped_folder, job)
    tiny.losses(run, 8)

    optimizer_class, settings = KINDS[spec]
    plain_run = tiny.assemble_run(plain_folder, tiny.job(f"optimizer: {spec}, clip_norm: null"))
    groups = [
        {"params": [p], "weight_decay": 1e-4 if p.ndim > 1 else 0.0, "factor": factor(name)}
        for name, p in plain_run.model.named_parameters()
    ]
    optimizer = optimizer_class(groups, lr=0.01, **settings)
    plain_run.train_mode()
    for epoch in range(2):
        for batch in plain_run.batches.epoch(epoch):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * plain_run.rates.schedule(plain_run.counters.step) * group["factor"]
            loss = torch.nn.functional.cross_entropy(plain_run.model(*batch.inputs), batch.targets[""])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            plain_run.counters.step += 1
    for (name, parameter), expected in zip(run.model.named_parameters(), plain_run.model.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-6, msg=name)


def factor(name: str) -> float:
    head, _, layer = name.partition(".")
    return 1.0 if head != "features" else 0.05 if int(layer.partition(".")[0]) <= 6 else 0.3


def test_the_rates_are_logged_and_told(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job(GROUPS))
    fit_run(run)
    loss_rows = read_rows(tmp_path, "train/loss")
    assert len(loss_rows) == 12
    for row in loss_rows:
        assert row["features.[0-6]/lr"] == row["lr"] * 0.05
        assert row["features/lr"] == row["lr"] * 0.3
    assert trained_layers.describe(run) == [
        "model: 4,663 of 4,663 parameters are trainable",
        "learning rates: features.[0-6]: 196 parameters at 5e-05 (0.05 x 0.001); "
        "features: 4,416 parameters at 0.0003 (0.3 x 0.001); all others: 51 parameters at 0.001",
    ]
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["step"] == 1


def test_without_groups_nothing_changes(tmp_path: Path) -> None:
    """One factor for all gives the groups, and so the bits, of a job without."""
    losses = []
    for number, train in enumerate(("", "lr_groups: {'*': 1.0}")):
        (tmp_path / str(number)).mkdir()
        losses.append(tiny.losses(tiny.assemble_run(tmp_path / str(number), tiny.job(train)), 8))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("train", "model", "messages"),
    [
        (
            "lr_groups: {feature: 0.1}",
            "",
            (
                "tiny.yaml:6:",
                "train.lr_groups.feature: no layer matches 'feature'",
                "layers: features.0, features.1",
                'did you mean "features"?',
            ),
        ),
        (
            "lr_groups: {features: 0.1}",
            "freeze: {names: [features]}",
            ("'features' matches only frozen layers (model.freeze)", "layers: classifier"),
        ),
        (
            "lr_groups: {'features*': 0.1, features.0: 0.5}",
            "",
            (
                "train.lr_groups.features.0: matches only parameters that 'features*' matches before it",
                "write it before 'features*', or remove it",
            ),
        ),
        ("lr_groups: {features: 0}", "", ("train.lr_groups.features: is 0",)),
        ("lr_groups: 0.1", "", ("train.lr_groups: is 0.1", "a mapping")),
    ],
)
def test_bad_groups(train: str, model: str, messages: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        tiny.build(tiny.job(train, model), tiny.dataset())
    for message in messages:
        assert message in str(caught.value)


def test_a_layer_that_is_unfrozen_later_can_have_a_rate(tmp_path: Path) -> None:
    model = "freeze: {names: [features]}, unfreeze: [{epoch: 2, names: [features]}]"
    run = tiny.assemble_run(tmp_path, tiny.job(GROUPS, model))
    assert trained_layers.describe(run)[0] == "model: 51 of 4,663 parameters are trainable, 4,663 from epoch 2 on"
