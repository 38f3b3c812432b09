"""What each process of a run imports: large libraries only where they are used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.report import baseline_results
from tests.paths import IMPORTS

NEVER = {
    "matplotlib", "pyarrow", "pandas", "scipy", "transformers", "tokenizers", "timm", "torchvision", "torchmetrics",
    "onnx", "onnxruntime", "optuna", "docker", "sklearn", "sympy", "torch._dynamo", "torch._inductor",
    "tensorboard.backend",
}  # fmt: skip
"""What a job of arrays with a network of ours needs in none of its processes."""
HEAVY = {"torch", "numpy", "PIL", "tensorboard", "google", "safetensors"}
"""What only the trainer needs."""


@pytest.fixture(scope="module")
def loaded_modules(tmp_path_factory: pytest.TempPathFactory) -> list[set[str]]:
    """The modules of supervisor, trainer and report, in this order, of a run from command to report."""
    folder = tmp_path_factory.mktemp("loaded")
    processes = list_modules(folder, "train", str(write_job(folder)), "--runs", str(folder / "runs"))
    assert len(list(folder.glob("runs/*/report.html"))) == 1
    return processes


def list_modules(folder: Path, *arguments: str) -> list[set[str]]:
    """The modules that each process of a command imports, in the order in which they end."""
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1", "PYTHONPATH": IMPORTS}
    environment.pop(baseline_results.SWITCH, None)
    command = [sys.executable, "-m", "drivetrain", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    processes: list[set[str]] = []
    for line in done.stderr.splitlines():
        if line.endswith("| imported package"):
            processes.append(set())
        elif match := re.search(r"import time: +\d+ \| +\d+ \| +(\S+)", line):
            processes[-1].add(match[1])
    return processes


def write_job(folder: Path) -> Path:
    import numpy as np

    values = np.random.default_rng(0)
    np.savez(folder / "data.npz", images=values.integers(0, 255, (64, 8, 8), dtype=np.uint8), labels=np.arange(64) % 2)
    path = folder / "job.yaml"
    path.write_text(
        "name: small\ntask: image-classification\ndata: {train: data.npz, validation: 0.25}\n"
        "model: {name: small-cnn, width: 4}\ntrain: {epochs: 1, batch_size: 16}\n"
    )
    return path


def within(modules: set[str], packages: set[str]) -> set[str]:
    return {package for package in packages if any(f"{name}.".startswith(f"{package}.") for name in modules)}


def test_simple_models_are_part_of_the_run(loaded_modules: list[set[str]]) -> None:
    assert "drivetrain.baselines.run_comparison" in loaded_modules[1]


def test_help_imports_no_job(tmp_path: Path) -> None:
    """The classes of a job take ten times as long as the parser of the command line."""
    (modules,) = list_modules(tmp_path, "--help")
    assert within(modules, {*NEVER, *HEAVY, "pydantic", "yaml", "rich", "drivetrain.job", "drivetrain.launch"}) == set()


def test_validate_imports_what_the_job_needs(tmp_path: Path) -> None:
    (modules,) = list_modules(tmp_path, "validate", str(write_job(tmp_path)))
    unused = {"psutil", "rich", "drivetrain.launch.docker_engine"}
    assert within(modules, {*NEVER, *HEAVY, *unused}) == set()


def test_a_run_has_three_processes(loaded_modules: list[set[str]]) -> None:
    assert len(loaded_modules) == 3
    supervisor, trainer, report = loaded_modules
    assert "drivetrain.supervisor.supervisor" in supervisor
    assert "drivetrain.training.loop" in trainer
    assert "drivetrain.report.write" in report


@pytest.mark.parametrize("process", [0, 1, 2])
def test_no_process_loads_what_the_job_does_not_use(loaded_modules: list[set[str]], process: int) -> None:
    assert within(loaded_modules[process], NEVER) == set()


@pytest.mark.parametrize("process", [0, 2])
def test_supervisor_and_report_are_light(loaded_modules: list[set[str]], process: int) -> None:
    assert within(loaded_modules[process], HEAVY) == set()


def test_the_report_needs_no_supervisor(loaded_modules: list[set[str]]) -> None:
    assert within(loaded_modules[2], {"drivetrain.supervisor", "drivetrain.cli", "drivetrain.training"}) == set()


def test_texts_with_our_encoder_load_no_transformers(tmp_path: Path) -> None:
    """Its import takes as long as that of torch, and again in each process of each command."""
    lines = (f"el motor {'hace ruido' if n % 2 else 'pierde aceite'} {n},{'ab'[n % 2]}" for n in range(80))
    (tmp_path / "texts.csv").write_text("\n".join(["text,kind", *lines]))
    (tmp_path / "job.yaml").write_text(
        "name: texts\ntask: text-classification\ndata: {train: texts.csv, text: text, labels: {kind: 1.0}, "
        "validation: 0.25}\nmodel: {name: encoder, layers: 1, width: 16}\ntrain: {epochs: 1, batch_size: 16}\n"
    )
    trainers = list_modules(tmp_path, "train", "job.yaml")
    assert any("drivetrain.models.networks.bert" in modules for modules in trainers)
    run = str(tmp_path / "runs" / "texts-001")
    predictors = [list_modules(tmp_path, "predict", run, "texts.csv"), list_modules(tmp_path, "evaluate", run)]
    for modules in (*trainers, *predictors[0], *predictors[1]):
        assert within(modules, {"transformers", "torch._dynamo", "sympy", "torchvision"}) == set()
