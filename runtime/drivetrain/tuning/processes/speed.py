"""Measures the ablation of `drivetrain bench speed` in one process, which trains all variants in turn.

The request contains the assignments of a job to compare `against`, and the `command` for the record.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from functools import partial

import torch

from drivetrain import optimizations
from drivetrain.errors import DrivetrainError, Replanned
from drivetrain.models.networks.user_network import blame_job_code
from drivetrain.plan import final_plan
from drivetrain.plan.plan import Plan
from drivetrain.system import cpu_starvation, timeout, torch_settings
from drivetrain.system.console import say
from drivetrain.training.assemble import Assembly
from drivetrain.tuning import assembly
from drivetrain.tuning.bench import bench
from drivetrain.tuning.bench.ablation import Failed, measure_ablation
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.memory import meter
from drivetrain.tuning.paired_timing import TimedBlock
from drivetrain.tuning.variants import COMPARED_STEPS, Variant, turn_dropout_off

ROUNDS = 8
"""Paired measurements of each comparison."""
WARM_STEPS = 3
"""Number of steps for estimating the time of one."""


def measure(call: MeasuringCall) -> None:
    """Find the plan that `train` would use, and measure, print and write the ablation."""
    inputs = _load_planned(call)
    plan, machine = inputs.plan, inputs.hardware
    if inputs.assemble_copy(plan).only_solves_heads:
        say("bench: the heads of this job are solved; its training has none of the steps that are measured here")
    against = call.request["against"]
    other_inputs = None
    if against:
        source = replace(call.source, assignments=[*call.source.assignments, *against])
        other_inputs = assembly.load_assembly(call.folder, source.load(), call.signals)
    no_dropout = _changes_dropout(plan)

    def start(variant_plan: Plan, is_other_job: bool = False) -> BenchVariant:
        try:
            with blame_job_code(call.job):
                variant_inputs = other_inputs if is_other_job and other_inputs else inputs
                return BenchVariant(variant_inputs, variant_plan, no_dropout)
        except (DrivetrainError, MemoryError, RuntimeError) as error:
            raise Failed(str(error).strip().splitlines()[0][:200]) from None

    # Earlier compilations would shorten the first step.
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        ablation = measure_ablation(plan, start, ROUNDS, say, against)
    bench.report(ablation, plan, call.job, machine, call.request["command"], call.folder)


def _load_planned(call: MeasuringCall) -> Assembly:
    """Load data, network and the plan that `train` would use, which is measured first if the job leaves it open.

    Raises:
        Replanned: if the tuner may have compiled: this process would then measure first steps that are too short.
    """
    inputs = assembly.load_assembly(call.folder, call.job, call.signals)
    call.store_plan(inputs.plan)
    if call.is_measured:
        return inputs
    decide = partial(final_plan.finalize, call.job, inputs.hardware, inputs.plan, inputs.facts, say)
    inputs = assembly.measure_plan(inputs, decide, can_restart=True)
    call.store_plan(inputs.plan)
    if timeout.has_timed_out() or inputs.plan.value("compile") is not False:
        raise Replanned("the tuner's compilations would shorten first steps")
    return inputs


class BenchVariant:
    """A copy of the network that trains with a plan, after its first steps."""

    def __init__(self, inputs: Assembly, plan: Plan, no_dropout: bool) -> None:
        device = torch.device("cuda:0" if inputs.hardware.gpu else "cpu")
        memory = meter.meter_for(device)
        memory.reset_peak()
        bytes_before = memory.read_used()
        run = inputs.assemble_copy(plan)
        self.plan, self.on_gpu, self.notes = plan, device.type == "cuda", list[str]()
        run.step.report = lambda kind, text: self.notes.append(text) if kind in ("memory", "compile") else None
        self.variant = Variant.over_epochs(run)
        begin = time.perf_counter()
        if no_dropout:
            turn_dropout_off(run)
        self.numbers = [self.variant.train_step().read()]
        self.first_seconds = time.perf_counter() - begin
        self.numbers += [self.variant.train_step().read() for _ in range(COMPARED_STEPS - 1)]
        run.train_mode()
        if no_dropout:
            run.step.forget_last_step()  # its captured step has no dropout
        self.step_seconds = self.variant.time_steps(WARM_STEPS) / WARM_STEPS
        self.added_bytes = memory.peak() - bytes_before
        self.batch = len(run.dataset.train) / run.batches.per_epoch

    def time_steps(self, count: int) -> TimedBlock:
        """Time a block of steps, with its plan's settings of the whole process."""
        if self.on_gpu:
            torch_settings.set_tf32(self.plan.value("precision") in ("tf32", "bf16"))
            torch.backends.cudnn.benchmark = self.plan.value("cudnn_benchmark") is True
        waited_before = cpu_starvation.read_waited_seconds() or 0.0
        seconds = self.variant.time_steps(count)
        return TimedBlock(count, seconds, ((cpu_starvation.read_waited_seconds() or 0.0) - waited_before) / seconds)


def _changes_dropout(plan: Plan) -> bool:
    """Return whether variants have different dropout masks.

    This is False if one compiles, because a variant compiled without dropout would be compiled again with it.
    """
    names = {row.name for row in plan.list_enabled()}
    if "compile" in names:
        return False
    return any(setting.redraws for setting in optimizations.every() if setting.name in names)
