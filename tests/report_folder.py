"""A run folder as a finished run leaves it, for tests of what reads one."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drivetrain.hardware.facts import read_hardware
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.stored_spec import spec_text
from drivetrain.plan import plan as plans
from tests.paths import ROOT

MACHINES = ROOT / "tests" / "machines"
STEPS, EVERY = 540, 45


def write_rows(path: Path, items: Any) -> None:
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")


def metrics(steps: int = STEPS) -> list[dict[str, float]]:
    """Losses that fall with noise, a one-cycle rate, and an evaluation now and then."""
    noise, metric_rows = random.Random(0), []
    for step in range(1, steps + 1):
        part = step / steps
        loss = 2.3 * math.exp(-6 * part) * noise.uniform(0.6, 1.5) + 0.004
        rate = 3e-3 * (part / 0.3 if part < 0.3 else 0.5 + 0.5 * math.cos(math.pi * (part - 0.3) / 0.7))
        metric_rows.append(
            {
                "step": step,
                "epoch": step * 12 // steps,
                "train/loss": loss,
                "lr": rate,
                "grad_norm": 3 * noise.random() * math.exp(-2 * part),
            }
        )
        if step % EVERY == 0:
            accuracy = 0.986 - 0.7 * math.exp(-9 * part)
            metric_rows.append(
                {
                    "step": step,
                    "epoch": step * 12 // steps,
                    "validation/loss": 0.06 + math.exp(-6 * part),
                    "validation/accuracy": accuracy,
                    "validation/f1": accuracy - 0.004,
                }
            )
    return metric_rows


def telemetry(seconds: int = 41) -> list[dict[str, float | None]]:
    noise = random.Random(1)
    return [
        {
            "seconds": s + 0.5,
            "step": s * STEPS // seconds,
            "samples_per_second": noise.gauss(520, 25),
            "input_wait": 0.02 + 0.03 * noise.random(),
            "process_memory": 4.2e8 + 9e7 * (1 - math.exp(-s / 5)),
            "memory_used": 5e8 + 1e8 * (1 - math.exp(-s / 5)),
            "memory_limit": 4 * 2**30,
            "cpu_percent": noise.gauss(185, 6),
            "throttled_seconds": 12 + s / 50,
        }
        for s in range(seconds)
    ]


def confusion(classes: list[str]) -> dict[str, Any]:
    noise, count = random.Random(2), len(classes)
    matrix = [[0] * count for _ in classes]
    for truth in range(count):
        for _ in range(36):
            matrix[truth][truth if noise.random() < 0.94 else noise.randrange(count)] += 1
    return {"classes": classes, "matrix": matrix}


BEST_METRICS = {"validation/loss": 0.0587, "validation/accuracy": 0.9861, "validation/f1": 0.9858}
"""Of the model; the last epoch is a little worse."""


def result(classes: list[str]) -> dict[str, Any]:
    return {
        "steps": STEPS,
        "epochs": 12,
        "seconds": 41.6,
        "samples_per_second": 518.3,
        "best": {"metric": "validation/accuracy", "value": 0.9861, "step": 495, "epoch": 11, "metrics": BEST_METRICS},
        "last": {"validation/loss": 0.0642, "validation/accuracy": 0.9833, "validation/f1": 0.9829},
        "confusion": {"": confusion(classes)},
        "peak_memory": 620_000_000,
        "memory_limit": 4 * 2**30,
        "parameters": 94_538,
        "trainable": 94_538,
        "stopped_because": "all 12 epochs trained",
        "phases": {"import": 2.1, "data": 0.4, "train": 35.2, "evaluate": 2.9, "checkpoint": 0.6},
    }


def list_settings_in_effect(plan: plans.Plan) -> dict[str, Any]:
    settings: dict[str, Any] = {
        d.name: {"asked": d.value, "seen": d.value, "same": True, "cause": None} for d in plan.decisions
    }
    settings["allocator"] |= {"asked": "tcmalloc", "seen": "malloc", "same": False, "cause": "LD_PRELOAD was removed"}
    return settings | {
        "libraries": {"torch": "2.13.0+cpu", "oneDNN": "3.11.2", "libiomp5": "openmp 20240515, 2 threads"}
    }


def make_run(run: Path, machine: str = "codespace-2core-cgroup2", classes: list[str] | None = None) -> Path:
    """A run folder as a finished run leaves it."""
    run.mkdir(parents=True)
    job: Job = job_spec.load(ROOT / "jobs" / "digits.yaml")
    hardware = read_hardware(MACHINES / f"{machine}.json")
    plan = plans.resolve(job, hardware)
    state = {
        "status": "done",
        "exit_code": 0,
        "source": "jobs/digits.yaml",
        "set": ["train.epochs=12"],
        "attempts": 1,
        "started": "2025-03-01T10:00:00+00:00",
        "ended": "2025-03-01T10:00:44+00:00",
    }
    texts: dict[str, Any] = {
        "hardware": hardware.to_json(),
        "plan": plan.to_json() | {"seen": list_settings_in_effect(plan)},
        "result": result(classes or [str(i) for i in range(10)]),
        "state": state,
    }
    for name, data in texts.items():
        (run / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    (run / "job.yaml").write_text(spec_text(job), encoding="utf-8")
    write_rows(run / "metrics.jsonl", metrics())
    write_rows(run / "telemetry.jsonl", telemetry())
    write_rows(
        run / "events.jsonl", [{"time": "2025-03-01T10:00:07+00:00", "kind": "retry", "text": "one file read again"}]
    )
    return run


def change_json(path: Path, edit: Callable[[Any], object]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def make_live_run(folder: Path) -> Path:
    """A run of 540 steps in 12 epochs that is half done and still runs."""
    run_folder = make_run(folder)
    change_json(run_folder / "state.json", lambda s: s.update(status="running", exit_code=None, ended=None))
    write_rows(run_folder / "metrics.jsonl", [row for row in metrics() if row["step"] <= 270])
    write_rows(run_folder / "telemetry.jsonl", telemetry()[:21])
    (run_folder / "progress.json").write_text(
        json.dumps({"steps": 540, "steps_per_epoch": 45, "evaluation_steps": 4.0})
    )
    return run_folder
