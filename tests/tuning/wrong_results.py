"""A network that computes something wrong with some settings."""

from __future__ import annotations

import pytest

from drivetrain.plan import plan
from drivetrain.tuning import tuner as tune
from drivetrain.tuning import variants


def corrupt_where(monkeypatch: pytest.MonkeyPatch, is_wrong: object) -> None:
    """A network with wrong outputs in channels_last, or without it, for the jobs or data that `is_wrong` selects."""
    original_build = tune.Tuner.build

    def arm(self: tune.Tuner, variant_plan: plan.Plan) -> variants.Variant:
        variant = original_build(self, variant_plan)
        if is_wrong(self, variant_plan):
            step = variant.run.step
            variant.run.step.forward.compute = lambda *inputs: step.forward.network(*inputs) * 1.01
        return variant

    monkeypatch.setattr(tune.Tuner, "build", arm)
