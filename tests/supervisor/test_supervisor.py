"""Whole runs through the command line: complete folders, resuming, signals, errors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import safetensors.torch
import torch

from tests.messages import says
from tests.paths import IMPORTS, ROOT
from tests.supervisor.tiny_run import TEXT, command, have_same_weights, read_rows, train
from tests.waiting import wait_until


def test_a_run_folder_is_complete_and_the_next_run_is_numbered(job: Path) -> None:
    done = train(job, "-v")
    assert done.returncode == 0, done.stderr
    run = job.parent / "runs" / "tiny-001"
    names = {path.name for path in run.iterdir()}
    assert names >= {
        "job.yaml",
        "hardware.json",
        "plan.json",
        "metrics.jsonl",
        "telemetry.jsonl",
        "tensorboard",
        "checkpoints",
        "model",
        "report.html",
        "report.md",
        "report.json",
        "result.json",
        "state.json",
    }
    assert "cpu: 1 thread, fp32, oneDNN" in done.stdout
    assert "\x1b" not in done.stdout
    assert not done.stderr
    effective_rows = json.loads((run / "plan.json").read_text())["seen"]
    assert all(row["same"] for name, row in effective_rows.items() if name != "libraries")
    assert list((run / "tensorboard").glob("events.*"))
    phases = json.loads((run / "result.json").read_text())["phases"]
    assert {"import", "data", "model", "train", "evaluate"} < {name for name, seconds in phases.items() if seconds > 0}
    steps = [row["step"] for row in read_rows(run) if "lr" in row]
    assert steps == list(range(1, 33))  # 120 training samples in batches of 16, four epochs
    second = train(job)
    assert second.returncode == 0
    assert have_same_weights(run, job.parent / "runs" / "tiny-002")
    assert read_rows(run) == read_rows(job.parent / "runs" / "tiny-002")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGINT])
def test_a_signal_saves_and_exits_with_75(job: Path, number: signal.Signals) -> None:
    job.write_text(TEXT.replace("epochs: 4", "epochs: 400"))
    running = subprocess.Popen(command(job), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run = job.parent / "runs" / "tiny-001"
    wait_until(lambda: (run / "metrics.jsonl").exists() and len(read_rows(run)) > 10)
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 75, out + err
    origin = {signal.SIGTERM: "", signal.SIGINT: " (Ctrl-C)"}[number]
    assert f"stopped by {number.name}{origin} after step" in err
    assert says(err, "run-same-command-again-resume")
    assert "Traceback" not in err
    assert json.loads((run / "state.json").read_text())["status"] == "stopped"


def test_a_scheduler_repeats_its_signal_to_every_process(job: Path) -> None:
    """Slurm signals all processes of a step, and the supervisor hands its own on: no second wish to stop."""
    job.write_text(TEXT.replace("epochs: 4", "epochs: 400"))
    environ = {**os.environ, "SLURM_STEP_ID": "0"}
    running = subprocess.Popen(command(job), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ)
    run = job.parent / "runs" / "tiny-001"
    wait_until(lambda: (run / "metrics.jsonl").exists() and len(read_rows(run)) > 10)
    every = [*psutil.Process(running.pid).children(recursive=True), psutil.Process(running.pid)]
    while running.poll() is None:
        for process in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        time.sleep(0.02)
    _, err = running.communicate()
    assert running.returncode == 75, err.decode()


def test_max_time_stops_with_75_and_the_run_resumes(job: Path) -> None:
    job.write_text(TEXT.replace("epochs: 4", "epochs: 4, max_time: 1s").replace("width: 4", "width: 64"))
    first = train(job)
    if first.returncode != 0:
        assert first.returncode == 75, first.stderr
        assert "max_time of 1s has passed" in first.stderr


def test_plain_is_the_baseline(job: Path) -> None:
    done = train(job, "--plain")
    assert done.returncode == 0, done.stderr
    plan = json.loads((job.parent / "runs" / "tiny-001" / "plan.json").read_text())
    assert {row["source"] for row in plan["decisions"]} == {"plain"}
    assert all(row["same"] for name, row in plan["seen"].items() if name != "libraries")


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (["--set", "data.train=lost.npz"], 3, "data.train: 'lost.npz' does not exist"),
        (["--set", "optimize.cpu_threads=999"], 2, "optimize.cpu_threads: is 999, which is not possible here"),
        (["--set", "train.optimizer.lr=1e30"], 5, "lower train.optimizer.lr"),
        pytest.param(
            ["--set", "model.freeze.names=[nothing*]"], 2, "no layer matches 'nothing*'", marks=pytest.mark.nightly
        ),
        (["--plain", "--plan", "x.json"], 2, "--plain and --plan together"),
        (["--runs", "/proc/none"], 7, "/proc/none"),
    ],
)
def test_errors_have_their_exit_code_and_no_traceback(job: Path, options: list[str], code: int, expected: str) -> None:
    done = train(job, *options)
    assert done.returncode == code, done.stdout + done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_trainer_is_refused(job: Path) -> None:
    job.write_text(TEXT.replace("epochs: 4", "epochs: 400"))
    running = subprocess.Popen(command(job), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: (job.parent / "runs" / "tiny-001" / "state.json").exists())
    second = train(job)
    running.send_signal(signal.SIGTERM)
    running.wait(timeout=60)
    assert second.returncode == 11
    assert says(second.stderr, "another-process-training-folder")


@pytest.mark.nightly  # in this process: models/networks/test_text_encoder.py
def test_frozen_parts_do_not_move(job: Path) -> None:
    job.write_text(TEXT.replace("dropout: 0.1", "freeze: {names: [features.0, features.1]}"))
    done = train(job)
    assert done.returncode == 0, done.stderr
    run = job.parent / "runs" / "tiny-001"
    assert "parameters are trainable" in done.stdout
    first, last = (sorted((run / "checkpoints").glob("step-*"))[i] for i in (0, -1))
    one, two = (
        {
            name: value
            for part in ("model", "frozen")
            for name, value in safetensors.torch.load_file(path / f"{part}.safetensors").items()
        }
        for path in (first, last)
    )
    assert torch.equal(one["features.0.weight"], two["features.0.weight"])
    assert torch.equal(one["features.1.running_mean"], two["features.1.running_mean"])
    assert not torch.equal(one["features.3.weight"], two["features.3.weight"])


def test_the_trainer_dies_with_its_supervisor(job: Path) -> None:
    job.write_text(TEXT.replace("epochs: 4", "epochs: 4000"))
    running = subprocess.Popen(command(job), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: children(running.pid) and (job.parent / "runs/tiny-001/metrics.jsonl").exists())
    (trainer,) = children(running.pid)
    running.kill()
    running.wait()
    wait_until(lambda: not Path(f"/proc/{trainer}").exists() or "Z" in Path(f"/proc/{trainer}/stat").read_text())


def children(pid: int) -> list[int]:
    return (
        [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        if os.path.exists(f"/proc/{pid}")
        else []
    )


def test_a_batch_larger_than_the_data_is_told(job: Path) -> None:
    """One step an epoch: it trained to the end without a word, and learned hardly anything."""
    done = train(job, "--set", "train.batch_size=100000", "--set", "train.steps=100")
    assert done.returncode == 0, done.stderr
    line = r"train\.batch_size: 100,000 is more than the [\d,]+ training samples; each epoch has one step"
    assert re.search(line, done.stdout), done.stdout
    # More steps than the epochs have were not trained either.
    line = r"train\.steps: 100 is more than the (\d) steps of train\.epochs: \1; the run ends after \1 steps"
    assert re.search(line, done.stdout), done.stdout


def test_without_asserts_and_docstrings_and_with_paths_that_begin_with_a_dash(job: Path) -> None:
    """`python -OO`, and `./-tiny.yaml`, which without its dot would be an option of the trainer."""
    job.rename(job.with_name("-tiny.yaml"))
    arguments = [
        sys.executable,
        "-OO",
        "-m",
        "drivetrain",
        "train",
        "./-tiny.yaml",
        "--runs=./-runs",
        "--set",
        "train.epochs=1",
    ]
    environment = {**os.environ, "PYTHONPATH": IMPORTS, "PYTHONOPTIMIZE": "2"}
    done = subprocess.run(arguments, cwd=job.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (job.parent / "-runs" / "tiny-001" / "report.html").exists()
