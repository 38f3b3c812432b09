"""Losses of a user are those of a plain loop, however a batch is split, or are not split: of many kinds, in one process and in
two, in micro-batches and whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests import border_losses, ranks_cases
from tests.border_losses import LOSSES

torch.set_num_threads(1)
REFUSED = {"unknown": "neither the mean nor the sum over its parts", "beside": "neither the mean nor the sum"}
SPLIT = [kind for kind in LOSSES if kind not in REFUSED]
Numbers = dict[str, list[float]]


def plain(folder: Path, kind: str) -> Numbers:
    """What a loop by hand makes of the same batches."""
    made = border_losses.assembled(folder, kind)
    model, loss = made.model, LOSSES[kind]
    optimizer = torch.optim.SGD(model.parameters(), lr=float(made.job.train.optimizer.lr))
    (x, y), (others, labels) = (
        (split.gather(torch.arange(len(split)).numpy())[0], split.targets[""])
        for split in (made.dataset.train, made.dataset.validation)
    )
    found: Numbers = {"train/loss": [], "validation/loss": []}
    for epoch in range(2):
        for ids in map(torch.from_numpy, made.batches.order(epoch)):
            value = loss(model(x[ids]), y[ids]).mean()
            # A batch without anything that counts trains nothing.
            if not value.isnan():
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
            found["train/loss"].append(float(value.detach().nan_to_num()))
        with torch.no_grad():
            found["validation/loss"].append(float(loss(model(others), labels).mean()))
    return found | {"weights": border_losses.weights(model)}


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = [case for kind in LOSSES for case in (kind, f"{kind}/3")]
    leader, other = ranks_cases.together(tmp_path_factory.mktemp("two"), cases, 2, "border_losses")
    assert all(leader[case].get("weights") == other[case].get("weights") for case in cases)
    return leader


def same(found: dict[str, Any], expected: Numbers) -> None:
    assert "refused" not in found, found
    for key, values in expected.items():
        one, two = torch.tensor(found[key], dtype=torch.float64), torch.tensor(values, dtype=torch.float64)
        assert len(one) == len(two)
        assert float((one - two).norm() / two.norm()) < 1e-5, key


@pytest.mark.parametrize("size", ["", "/3"], ids=["whole", "micro"])
@pytest.mark.parametrize("kind", SPLIT)
def test_one_process_trains_as_a_loop_by_hand(kind: str, size: str, tmp_path: Path) -> None:
    same(border_losses.trained(tmp_path / "run", kind + size), plain(tmp_path / "plain", kind))


@pytest.mark.parametrize("size", ["", "/3"], ids=["whole", "micro"])
@pytest.mark.parametrize("kind", SPLIT)
def test_two_processes_train_as_a_loop_by_hand(kind: str, size: str, tmp_path: Path, by_two: dict[str, Any]) -> None:
    same(by_two[kind + size], plain(tmp_path, kind))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_put_together_is_trained_whole_or_refused(
    kind: str, tmp_path: Path, by_two: dict[str, Any]
) -> None:
    same(border_losses.trained(tmp_path / "run", kind), plain(tmp_path / "plain", kind))
    refused = [border_losses.trained(tmp_path / "micro", f"{kind}/3"), by_two[kind], by_two[f"{kind}/3"]]
    keys = ["optimize.micro_batch: is 3", "limits.processes: a batch has 2 parts", "optimize.micro_batch: is 3"]
    for found, key in zip(refused, keys, strict=True):
        assert key in found["refused"]
        assert REFUSED[kind] in found["refused"]
        assert "weight_of" in found["refused"]
