"""The example jobs, precisions, kernels, resume and memory on a real GPU, with the command that a user types."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from drivetrain.job.train import Fp16
from drivetrain.optimizations import compile
from drivetrain.training.captured_step import CudaGraphs
from jobs.samples.write import write
from tests.gpu.conftest import environment
from tests.messages import says
from tests.paths import ROOT
from tests.training import replayed_steps
from tests.training.replayed_steps import bits

DIGITS = ROOT / "jobs" / "digits.yaml"
SAME = "train.deterministic=true"
OFTEN = "checkpoint.every=10 steps"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small sample data of every kind."""
    folder = tmp_path_factory.mktemp("samples")
    for name, size in (("patterns", 240), ("reports", 1500), ("series", 16000), ("table", 8000)):
        write(name, folder / name, size)
    return folder


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "drivetrain", *words]


def drivetrain(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        command(*words), capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=300, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def train(job: Path, runs: Path, *settings: str, code: int = 0) -> str:
    sets = [word for setting in settings for word in ("--set", setting)]
    return drivetrain("train", str(job), "--runs", str(runs), *sets, code=code)


def result(runs: Path) -> dict[str, object]:
    (path,) = runs.glob("*/result.json")
    content: dict[str, object] = json.loads(path.read_text())
    return content


def digest(runs: Path) -> str:
    (model,) = runs.glob("*/model/model.safetensors")
    return hashlib.sha256(model.read_bytes()).hexdigest()


def jobs(samples: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """The example jobs, shortened, with their data."""
    at = {
        "digits": ("train.epochs=2",),
        "own-model": ("train.epochs=1", "data.arguments.samples=640"),
        "patterns": ("train.epochs=1", f"data.train={samples}/patterns"),
        "reports": ("train.epochs=1", f"data.train={samples}/reports/reports.csv"),
        "series": ("train.epochs=1", f"data.train={samples}/series/train.csv"),
        "table": ("train.epochs=1", f"data.train={samples}/table/train.parquet"),
    }
    return {name: (ROOT / "jobs" / f"{name}.yaml", settings) for name, settings in at.items()}


NAMES = ("digits", "own-model", "patterns", "reports", "series", "table")


@pytest.mark.parametrize("name", NAMES)
def test_an_example_trains_on_the_gpu(name: str, samples: Path, tmp_path: Path) -> None:
    job, settings = jobs(samples)[name]
    output = train(job, tmp_path, *settings)
    assert says(output, "results-bit-identical")
    assert "UserWarning" not in output
    assert re.search(r"^NVIDIA .*: \d+ threads, (bf16|fp16|fp32), cuDNN", output, re.MULTILINE), "the GPU computes"
    assert result(tmp_path)["steps"]
    telemetry = [json.loads(line) for line in next(tmp_path.glob("*/telemetry.jsonl")).read_text().splitlines()]
    assert any(row.get("gpu_percent") is not None for row in telemetry), "the GPU is monitored"


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_twice(name: str, samples: Path, tmp_path: Path) -> None:
    job, settings = jobs(samples)[name]
    for part in ("one", "two"):
        output = train(job, tmp_path / part, SAME, *settings)
    assert says(output, "bit-identical-same-image")
    assert digest(tmp_path / "one") == digest(tmp_path / "two")


@pytest.mark.parametrize("name", ["digits", "reports", "series"])
def test_a_killed_run_goes_on_with_the_same_bits(name: str, samples: Path, tmp_path: Path) -> None:
    job, settings = jobs(samples)[name]
    settings = (SAME, OFTEN, "monitor.every=0.2s", *settings)
    train(job, tmp_path / "whole", *settings)
    kill_after_checkpoint(job, tmp_path / "cut", settings)
    assert "resumed from step-" in train(job, tmp_path / "cut", *settings)
    assert digest(tmp_path / "whole") == digest(tmp_path / "cut")


def kill_after_checkpoint(job: Path, runs: Path, settings: tuple[str, ...]) -> None:
    """Start a training, and kill it with all its processes after a checkpoint past the first step."""
    sets = [word for setting in settings for word in ("--set", setting)]
    process = subprocess.Popen(
        command("train", str(job), "--runs", str(runs), *sets),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=environment(),
        start_new_session=True,
    )
    wait(lambda: any(runs.glob("*/checkpoints/step-[1-9]*/MANIFEST.json")) or process.poll() is not None)
    assert process.poll() is None, "it ended before it could be killed"
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def wait(done: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def test_all_precisions_learn_the_same(tmp_path: Path) -> None:
    accuracies = {}
    for precision in PRECISIONS:
        output = train(DIGITS, tmp_path / precision, "train.epochs=4", f"optimize.precision={precision}")
        assert "UserWarning" not in output
        accuracies[precision] = float(re.findall(r"best validation/accuracy (\S+)", output)[-1])
    assert min(accuracies.values()) > 0.95, accuracies


def test_compiled_and_captured_steps_learn_too(tmp_path: Path) -> None:
    output = train(DIGITS, tmp_path, "train.epochs=3", "optimize.compile=graphs")
    assert "failed" not in output
    assert "UserWarning" not in output
    (plan_path,) = tmp_path.glob("*/plan.json")
    rows = {row["name"]: row["value"] for row in json.loads(plan_path.read_text())["decisions"]}
    assert rows["compile"] == "graphs"


class CountedGraphs(CudaGraphs):
    """CUDA graphs that count their replays."""

    replays = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        replay = super().capture(work)

        def counted() -> None:
            self.replays += 1
            replay()

        return counted


def train_in_folder(
    folder: Path, options: str, scaling: Fp16 | None, device: Any, *, compiled: bool = False
) -> dict[str, Any]:
    training_run = replayed_steps.assemble_run(folder, f"{options}, deterministic: true", False)
    if compiled:
        compile.apply(training_run, True)
    if scaling:
        training_run.step.forward.dtype = torch.float16
        training_run.step.scale_losses(scaling)
    return replayed_steps.train_epochs(training_run, device)


@pytest.mark.parametrize("compiled", ["false", "true"])
def test_whole_steps_are_captured(tmp_path: Path, compiled: str) -> None:
    output = train(DIGITS, tmp_path, "train.epochs=3", "optimize.step_graph=true", f"optimize.compile={compiled}")
    assert "could not be captured" not in output
    assert "compile failed" not in output
    assert "UserWarning" not in output


@pytest.mark.parametrize("scaling", [None, replayed_steps.SCALING], ids=["fp32", "fp16"])
@pytest.mark.parametrize(
    ("options", "compiled"),
    [("ema: 0.5", False), ("optimizer: {name: sgd, lr: 0.1, momentum: 0.9}", False), ("ema: 0.5", True)],
    ids=["averaged", "momentum", "compiled"],
)
def test_captured_steps_have_the_bits_of_usual_ones(
    tmp_path: Path, options: str, compiled: bool, scaling: Fp16 | None
) -> None:
    devices: tuple[Any, ...] = (None, CountedGraphs(torch.device("cuda:0")))
    usual, captured = (
        train_in_folder(tmp_path / name, options, scaling, device, compiled=compiled)
        for name, device in zip(("usual", "captured"), devices, strict=True)
    )
    assert devices[1].replays >= 6
    assert [name for name, value in usual.items() if bits(captured[name]) != bits(value)] == []


JOB = """name: large
task: image-classification
data: {{train: {data}, validation: 0.2, image_size: 128}}
model: {{name: resnet50, stem: large}}
train: {{batch_size: 64, epochs: 1, optimizer: {{name: adamw, lr: 1e-3}}}}
limits: {{gpu_memory: {memory}}}
"""


def test_memory_that_runs_out_halves_the_batch(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 255, (160, 128, 128, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pixels, labels=np.arange(160) % 4)
    job = tmp_path / "large.yaml"
    job.write_text(JOB.format(data=tmp_path / "images.npz", memory="1g"))
    output = train(job, tmp_path / "runs")
    assert says(output, "memory-micro-batch-continuing", 64, 32)


def test_an_operation_without_deterministic_kernel_is_named(tmp_path: Path) -> None:
    (tmp_path / "network.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(48, 2))\n"
    )
    generator = np.random.default_rng(0)
    np.savez(
        tmp_path / "images.npz",
        images=generator.integers(0, 255, (200, 8, 8), dtype=np.uint8),
        labels=np.arange(200) % 2,
    )
    job = tmp_path / "own.yaml"
    job.write_text(
        f"name: own\ntask: image-classification\ndata: {{train: {tmp_path}/images.npz, validation: 0.2}}\n"
        "model: {file: network.py}\ntrain: {epochs: 1, deterministic: true}\n"
    )
    output = train(job, tmp_path / "runs")
    assert says(output, "adaptive-avg-pool2d-backward")


def test_a_model_trained_on_the_gpu_is_used_on_the_cpu(tmp_path: Path) -> None:
    train(DIGITS, tmp_path, "train.epochs=2")
    (folder,) = tmp_path.glob("digits-*")
    on_gpu = drivetrain("evaluate", str(folder))
    on_cpu = subprocess.run(
        command("evaluate", str(folder)),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        env=environment() | {"CUDA_VISIBLE_DEVICES": ""},
    ).stdout
    number = re.compile(r"validation/accuracy\s+(\S+)")
    assert abs(float(number.findall(on_gpu)[0]) - float(number.findall(on_cpu)[0])) < 0.01
