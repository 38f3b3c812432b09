"""Trains a copy of the job's network with one plan, step by step on request, as a child of `drivetrain bench`.

The request contains the file of the `plan`, and `no_dropout` for comparing losses without dropout. The program sends an
answer when it is ready, then one for each line of its input, which is a number of steps. It ends with its input.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from drivetrain.data.load_data import load
from drivetrain.hardware import facts
from drivetrain.hardware.used_memory import read_peak_memory
from drivetrain.models.build import build
from drivetrain.models.networks.user_network import blame_job_code
from drivetrain.plan import plan as plans
from drivetrain.system import cpu_starvation
from drivetrain.system.child_process import read_requests
from drivetrain.system.files import read_json
from drivetrain.training.assemble import Assembly
from drivetrain.training.run import Run
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.variants import COMPARED_STEPS, Variant, turn_dropout_off

WARM_STEPS = 3
"""Number of steps for estimating the time of one."""


def measure(call: MeasuringCall) -> None:
    """Build the network, and train it on request of the parent."""
    serve(build_variant(call), call.answer, call.request["no_dropout"])


def build_variant(call: MeasuringCall) -> Variant:
    """Build the job's network with a plan, before its first batch."""
    job, dataset = call.job, load(call.job)
    machine = facts.from_json(read_json(call.folder / "hardware.json"))
    plan = plans.load(Path(call.request["plan"]))
    run = Assembly(job, machine, plan, call.folder, dataset, build(job, dataset), call.signals).assemble()
    return Variant.over_epochs(run)


def serve(variant: Variant, answer: Callable[[object], None], no_dropout: bool = False) -> None:
    """Report the losses of the first steps, without dropout if `no_dropout`, then serve requests."""
    run = variant.run
    notes: list[str] = []

    def report(kind: str, text: str) -> None:
        if kind == "memory":
            notes.append(text)

    run.step.report = report
    with blame_job_code(run.job):
        start = time.perf_counter()
        if no_dropout:
            turn_dropout_off(run)
        numbers = [variant.train_step().read()]
        first_seconds = time.perf_counter() - start
        numbers += [variant.train_step().read() for _ in range(COMPARED_STEPS - 1)]
        run.train_mode()
        step_seconds = variant.time_steps(WARM_STEPS) / WARM_STEPS
    if run.step.forward.compile_error:
        notes.append(f"compile failed: {run.step.forward.compile_error}")
    samples_per_step = len(run.dataset.train) / run.batches.per_epoch
    answer(
        {
            "numbers": numbers,
            "first": first_seconds,
            "step": step_seconds,
            "batch": samples_per_step,
            "notes": notes,
            "peak": read_peak(run),
        }
    )
    for count in read_requests():
        waited_before = cpu_starvation.read_waited_seconds() or 0.0
        seconds = variant.time_steps(count)
        answer(
            {
                "seconds": seconds,
                "waited": ((cpu_starvation.read_waited_seconds() or 0.0) - waited_before) / seconds,
                "peak": read_peak(run),
            }
        )


def read_peak(run: Run) -> int:
    """Read the peak bytes so far of the GPU if there is one, else of this process and its children."""
    if run.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return read_peak_memory(alone=False)  # the compared variant runs at the same time
