"""Assembles a run for the trainer and the library: measures with data and network, then applies the final plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from drivetrain.data.custom import user_code
from drivetrain.data.custom.user_loss import cannot_split_error
from drivetrain.data.notes import format_note
from drivetrain.distributed import world
from drivetrain.errors import Replanned
from drivetrain.hardware import device_check
from drivetrain.hardware import facts as hardware
from drivetrain.job import Job
from drivetrain.models import inspection, operations
from drivetrain.models.build import build
from drivetrain.optimizations import gradient_checkpointing
from drivetrain.plan import final_plan
from drivetrain.plan import plan as plans
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import Plan
from drivetrain.system import timeout
from drivetrain.system.console import report_if_slow, say
from drivetrain.system.run_files import HARDWARE_FILE, PLAN_FILE, RunFiles
from drivetrain.system.signals import Signals
from drivetrain.training import effective_settings, recorded_inputs
from drivetrain.training.assemble import Assembly
from drivetrain.training.checkpoints import checkpoint
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.training.run import Run
from drivetrain.tuning import tuner
from drivetrain.tuning.memory import meter
from drivetrain.tuning.memory.micro_batch import MicroBatchSearch


def assemble_run(
    folder: Path,
    job: Job,
    signals: Signals,
    timer: PhaseTimer,
    *,
    is_measured: bool = False,
) -> Run:
    """Assemble the run of a folder with hardware.json and plan.json; finalize, apply and record its plan.

    With `is_measured`, nothing is measured again.

    Raises:
        Replanned: if a compilation was interrupted, so that another process must run the plan in the folder.
    """
    assembly = load_assembly(folder, job, signals, timer)
    stored_plan = plans.load(folder / PLAN_FILE)
    resumes = checkpoint.can_resume(folder)
    if int(os.environ.get(world.WORLD_SIZE, "1")) > 1:
        say("tune: off for distributed training; micro_batch is not searched either")
    elif not is_measured and not resumes:
        decide = partial(final_plan.finalize, job, assembly.hardware, stored_plan, assembly.facts, say)
        with timer.phase("tune"):
            assembly = measure_plan(assembly, decide, can_restart=True)
        if timeout.has_timed_out():
            RunFiles(folder).write_json(PLAN_FILE, assembly.plan.to_json())
            raise Replanned("the measured settings need a new process")
    run = apply_plan(assembly, timer)
    if resumes and run.ranks.is_rank0:
        for line in final_plan.list_changes(stored_plan, assembly.plan):
            run.events.add("resume", line)
    return run


def load_assembly(folder: Path, job: Job, signals: Signals, timer: PhaseTimer | None = None) -> Assembly:
    """Load data, network and plan of a run folder before anything is measured."""
    timer = timer or PhaseTimer()
    machine = hardware.from_json(RunFiles(folder).read_json(HARDWARE_FILE))
    device_check.check_build(machine)
    with timer.phase("data"), report_if_slow("reading the data"):
        dataset = recorded_inputs.load_data(job, folder)
    for note in dataset.notes:
        say(format_note(note))
    with timer.phase("model"), report_if_slow("building the network"):
        built_model = build(job, dataset)
    for note in filter(None, (operations.describe_flop(built_model), *built_model.notes)):
        say(format_note(note, "model"))
    if dataset.loss:
        for note in dataset.loss.notes():
            say(format_note(note, "loss"))
    if built_model.code is not None:
        user_code.record_digests(folder, built_model.code)
    with timer.phase("model"):
        facts = inspection.inspect_workload(dataset, built_model.module, built_model.unfreezing)
    if gradient_checkpointing.needs_count_of_activations(job, machine, facts):
        # The epoch with the most trained layers saves the most activations.
        with built_model.unfreezing.during(built_model.module, built_model.unfreezing.last):
            facts = meter.count_activations(facts, built_model.module, dataset)
    plan = final_plan.finalize(job, machine, plans.load(folder / PLAN_FILE), facts, say)
    if facts.indivisible and plan.value("micro_batch") != "off":
        raise cannot_split_error(plan.decision("micro_batch").reason, facts.indivisible)
    return Assembly(job, machine, plan, folder, dataset, built_model, signals, facts)


def measure_plan(
    assembly: Assembly, decide: Callable[[Mapping[str, Measurement]], Plan], *, can_restart: bool = False
) -> Assembly:
    """Measure the decisions that the job leaves open; returns the assembly with the plan that `decide` makes of them.

    With `can_restart`, another process takes over if a compilation is interrupted.
    """
    # The micro-batch is measured first, because the tuner measures with it.
    memory_measurements = MicroBatchSearch(assembly).measure()
    if memory_measurements:
        assembly = replace(assembly, plan=decide(memory_measurements))
    measurements = tuner.load_or_measure(assembly, can_restart=can_restart)
    return replace(assembly, plan=decide(measurements | memory_measurements)) if measurements else assembly


def apply_plan(assembly: Assembly, timer: PhaseTimer) -> Run:
    """Assemble the run with its plan; report and record the effective settings."""
    run = assembly.assemble(timer)
    if run.ranks.world_size > 1:
        batch_norm_note = "; BatchNorm normalizes each share by itself" if assembly.facts.has("BatchNorm") else ""
        say(f"processes: {run.ranks.world_size}, each trains on its share of every batch{batch_norm_note}")
    effective_settings.record(run, say)
    return run
