"""Builds the variants that the tuner compares: copies of the network under other plans, on the same few batches."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from runtime import optimizations
from runtime.data.dataset import Batch, Dataset
from runtime.models.build import Model
from runtime.models.inspection import inspect_workload
from runtime.optimizations import Value
from runtime.plan.plan import Plan
from runtime.training.phase_timer import PhaseTimer
from runtime.training.run import Run, assemble
from runtime.tuning import variants
from runtime.tuning.variants import Numbers, Variant

BATCHES, FETCHING = 8, 2.0
"""All variants cycle through the same batches: so many, or as many as load in so many seconds, but at least two."""


class VariantBuilder:
    """Builds variants of one run, and the reference for their numbers.

    Args:
        made: the run, assembled under the plan so far; it is never changed.
        dataset: its data.
        network: its network, with the initial weights.
        say: reports progress.
    """

    def __init__(self, made: Run, dataset: Dataset, network: Model, say: Callable[[str], None]) -> None:
        self.made, self.dataset, self.network, self.say = made, dataset, network, say
        self.initial = copy.deepcopy(network.module.state_dict())
        self.facts = inspect_workload(dataset, network.module)
        self.given: dict[Value, list[Batch]] = {}
        self.checked = variants.CHECKED
        """Steps whose losses and gradient norms are compared."""
        self.plain: dict[tuple[bool, tuple[Value, ...]], Numbers] = {}

    def arm(self, plan: Plan) -> Variant:
        """A new copy of the network under a plan, at the first batch."""
        made = self.made
        module = copy.deepcopy(self.network.module)
        module.load_state_dict(self.initial)
        network = replace(self.network, module=module)
        kept = dict(self.dataset.kept)
        timer = PhaseTimer()
        run = assemble(
            made.job, made.hardware, plan, made.folder, self.dataset, network, made.signals, timer, parts=made.parts
        )
        if kept:
            # The baseline's cached activations would be lost to the run if they were replaced by a candidate's.
            self.dataset.kept.clear()
            self.dataset.kept.update(kept)
        run.train_mode()
        return Variant(run, self.batches(run), checked=self.checked)

    def batches(self, run: Run) -> Iterator[Batch]:
        """The same few batches for all variants; two variants that start with the first one stay in step."""
        # With these two, batches are other tensors for the same samples.
        kind = f"{run.plan.value('feature_cache')} {run.plan.value('gpu_resident_data')}"
        if kind not in self.given:
            end = time.monotonic() + FETCHING
            taken = self.given[kind] = []
            for batch in itertools.islice(run.batches.epoch(0), BATCHES):
                taken.append(batch)
                if len(taken) > 1 and time.monotonic() > end:
                    break
        return itertools.cycle(self.given[kind])

    def reference(self, quiet: bool, plan: Plan, until: float = math.inf) -> Numbers:
        """Losses and gradient norms with everything off, with dropout as in the plan that is compared.

        Raises:
            TooSlow: if they are not known by `until`.
        """
        off = variants.all_off(plan, quiet)
        off = off.with_values({"packed_dropout": False}) if plan.value("compile") is not False else off
        key = quiet, tuple(off.value(one.name) for one in optimizations.every() if one.redraws)
        if key not in self.plain:
            arm = self.arm(off)
            arm.until = until
            self.plain[key] = arm.numbers(quiet)
        return self.plain[key]
