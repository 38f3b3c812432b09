"""Schedules: where they start, where they peak, where they end."""

from __future__ import annotations

import pytest
import torch

from drivetrain.job.train import Constant, Cosine, Linear, OneCycle, Plateau, StepDown
from drivetrain.training.optimizer import Spec, build_schedule


def test_one_cycle_is_torchs() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=101, pct_start=0.3, div_factor=25, final_div_factor=400
    )
    ours = build_schedule(OneCycle(name="one-cycle"), 101, 10)
    for step in range(101):
        # torch counts its warm-up from 0 to 0.3 * total - 1; ours peaks one step later.
        if step > 32:
            assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=0.02)
        optimizer.step()
        if step < 100:
            theirs.step()


@pytest.mark.parametrize(
    ("spec", "first", "top", "last"),
    [
        (OneCycle(name="one-cycle"), 0.04, 1.0, 1e-4),
        (Cosine(name="cosine"), 1.0, 1.0, 0.0),
        (Cosine(name="cosine", warmup=0.1, floor=0.05), 1 / 11, 1.0, 0.05),
        (Linear(name="linear"), 1.0, 1.0, 0.0),
        (Linear(name="linear", warmup=0.2), 1 / 21, 1.0, 0.0),
        (StepDown(name="step", epochs=3), 1.0, 1.0, 0.001),
        (Constant(name="constant"), 1.0, 1.0, 1.0),
        (Plateau(name="plateau"), 1.0, 1.0, 1.0),
    ],
)
def test_ends(spec: Spec, first: float, top: float, last: float) -> None:
    factors = [build_schedule(spec, 100, 10)(step) for step in range(100)]
    assert factors[0] == pytest.approx(first, rel=1e-6)
    assert max(factors) == pytest.approx(top, rel=0.02)
    assert factors[-1] == pytest.approx(last, abs=0.02)
    assert min(factors) >= 0
