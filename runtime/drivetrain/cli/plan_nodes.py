"""`drivetrain plan JOB --nodes N`: what several machines would cost and gain, from a run on one machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from drivetrain.errors import CheckpointError, SpecError
from drivetrain.hardware import gpu_selection
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.plan import scaling
from drivetrain.report.record import read
from drivetrain.report.summary import summarize
from drivetrain.supervisor.run_folder import list_numbered
from drivetrain.system.files import parse_json
from drivetrain.system.run_files import RunFiles, refuse_links
from drivetrain.system.units import parse_rate

PHASES = ("train", "input", "forward", "optimizer")
"""Phases of a step. On a GPU the optimizer is not counted apart."""


def lines(options: argparse.Namespace, job: Job, machine: Hardware) -> Iterator[str]:
    """The prediction in words; nothing without --nodes.

    Raises:
        SpecError: if an option is no number or rate, or no run of the job has measured a step in one process.
    """
    if options.nodes is None:
        for option in ("per_node", "link"):
            if getattr(options, option) is not None:
                name = f"--{option.replace('_', '-')}"
                raise SpecError(f"{name} without --nodes", "--nodes N", f"add --nodes 2, or remove {name}")
        return
    per_node = options.per_node or 1
    if options.nodes < 1 or per_node < 1:
        raise SpecError(f"--nodes {options.nodes} --per-node {per_node}", "1 or more", "give numbers from 1 on")
    link = None
    if options.link is not None:
        try:
            link = parse_rate(options.link)
        except ValueError as error:
            raise SpecError(f"--link: {error}", "a rate in bits a second: 500mbit, 10gbit", "correct it") from None
    one = _measured_step(job, Path("runs"))
    if options.nodes * per_node > one.batch:
        raise SpecError(
            f"--nodes {options.nodes} --per-node {per_node}: {options.nodes * per_node} processes for a batch of {one.batch}",
            f"at most {one.batch} processes: each takes its share of every batch",
            "take fewer, or a larger batch (train.batch_size)",
        )
    halved = job.optimize.get("exchange_precision") == "bf16"
    room = gpu_selection.count_allowed_bytes(machine.gpu, job.limits.gpu_memory) if machine.gpu else None
    requested = job.optimize.get("sharding", "auto")
    sharded = room is not None and one.state > room if requested == "auto" else requested is True
    prediction = scaling.Scaling(one, options.nodes, per_node, halved, on_cpu=machine.gpu is None, sharded=sharded)
    yield "several machines (a model, not a measurement: docs/clusters.md)"
    yield from scaling.lines(prediction, link, room)


def _measured_step(job: Job, runs: Path) -> scaling.OneMachine:
    """A step of the newest run of the job in one process."""
    for run in reversed(list_numbered(runs, job.name) if runs.is_dir() else []):
        try:
            refuse_links(run)
            result = summarize(read(run))
            path = next(iter(sorted(run.glob("checkpoints/step-*/state.json"))))
            state = parse_json(RunFiles(run).read_text(str(path.relative_to(run))))
            alone = state["identity"]["processes"] == "1"
        except (CheckpointError, LookupError, OSError, StopIteration, TypeError, ValueError):
            continue
        seconds_of = {phase: result.phases.get(phase, 0.0) for phase in PHASES}
        if not alone or not result.trainable or not result.samples_per_second or not sum(seconds_of.values()):
            continue
        step = job.train.batch / result.samples_per_second
        updating = step * seconds_of["optimizer"] / sum(seconds_of.values())
        gradients = 4 * result.trainable
        state = (
            4 * (result.parameters or result.trainable) + (2 if job.train.optimizer.name == "sgd" else 3) * gradients
        )
        return scaling.OneMachine(run.name, job.train.batch, step - updating, updating, gradients, state)
    alone = "".join(f" --set limits.{key}=null" for key in ("nodes", "processes") if job.document.has(("limits", key)))
    raise SpecError(
        f"--nodes, and no finished run of {job.name} in one process is in {runs}",
        "a run on one machine, which has measured a step and counted the gradients",
        f"train it for a moment: drivetrain train {job.document.name} --set train.steps=100 --set name={job.name}{alone}",
    )
