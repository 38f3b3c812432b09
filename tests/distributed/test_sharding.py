"""Weights that are divided among processes: the same losses, killed and resumed with the same bits, and all faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from drivetrain.distributed import sharded_tensor
from drivetrain.errors import CheckpointError, RestartSmaller
from drivetrain.hardware.facts import read_hardware as load_facts
from drivetrain.job.workload import Workload
from drivetrain.optimizations import channels_last, compile, feature_cache, fused_optimizer, sharding
from drivetrain.system.run_files import list_checkpoints, parse_suffix
from tests import paths, ranks_cases, ranks_start, task_cases, tiny
from tests.messages import saying, says
from tests.paths import ROOT
from tests.supervisor.tiny_run import (
    TEXT,
    command,
    find_follower,
    have_same_weights,
    load_weights,
    read_rows,
    write_images,
)
from tests.waiting import wait_until

TASKS = [*(name.replace(" ", "-") for name in task_cases.CASES), "own"]


def losses(folder: Path, count: int, cases: list[str]) -> dict[str, Any]:
    """Losses and the sum of all weights of each case in so many processes, which all must have."""
    (folder / str(count)).mkdir()
    results_by_rank = ranks_cases.run_cases(folder / str(count), cases, count)
    assert all(one == results_by_rank[0] for one in results_by_rank)
    return results_by_rank[0]


@pytest.mark.nightly
def test_every_task_learns_what_it_learns_with_whole_weights(tmp_path: Path) -> None:
    for name, case in task_cases.CASES.items():
        home = tmp_path / "data" / name.replace(" ", "-")
        home.mkdir(parents=True)
        case.files(home)
        (home / "job.yaml").write_text(f"name: t\n{case.text}{task_cases.COMMON}")
    alone = losses(tmp_path, 1, [f"task/{task}+halves" for task in TASKS])
    together = losses(tmp_path, 2, [f"task/{task}+sharding=true" for task in TASKS])
    for (task_name, expected), sharded_losses in zip(alone.items(), together.values(), strict=True):
        np.testing.assert_allclose(sharded_losses, expected, rtol=1e-6, err_msg=task_name)


@pytest.mark.nightly
def test_divided_weights_learn_what_whole_ones_learn(tmp_path: Path) -> None:
    """In float64, with averaged weights, clipping, BatchNorm, a parameter without a dimension and one that is transposed.

    Three processes compute four parts in micro-batches of three: 2, 2 and 4 passes, so two of them add idle ones.
    """
    names = ["plain+fused", "norm", "plain+sgd"]
    alone = losses(tmp_path, 1, [f"convolutional/{name}+parts" for name in names])
    ways = [
        "convolutional/plain+fused+parts+threes+divided",
        "convolutional/norm+parts+divided",
        "convolutional/plain+sgd+parts+divided",
    ]
    together = losses(tmp_path, 3, ways)
    for (case, expected), sharded_losses in zip(alone.items(), together.values(), strict=True):
        assert len(set(expected)) == len(expected), "weights change in every step"
        np.testing.assert_allclose(sharded_losses, expected, rtol=1e-6, err_msg=case)


TOGETHER = ("limits.processes=2", "optimize.sharding=true")
FIXED = ("optimize.channels_last=false", "checkpoint.every=8 steps", "train.parts=3")


def options(name: str, *settings: str) -> list[str]:
    return [word for setting in (f"name={name}", *FIXED, *settings) for word in ("--set", setting)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with dropout, BatchNorm and averaged weights; batches are cut into three parts throughout."""
    path = tmp_path_factory.mktemp("divided") / "tiny.yaml"
    write_images(path.parent / "images.npz")
    path.write_text(TEXT)
    return path


def run(job: Path, name: str) -> Path:
    return job.parent / "runs" / f"{name}-001"


def run_to_end(job: Path, name: str, *settings: str) -> str:
    """What a command that ends well prints."""
    arguments = command(job, *options(name, *settings))
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def undisturbed_run(job: Path) -> Path:
    """A run that nothing happened to."""
    run_to_end(job, "calm", *TOGETHER)
    return run(job, "calm")


def begin_run(job: Path, name: str, *settings: str) -> subprocess.Popen[str]:
    """A run that has saved more than the weights of its start."""
    process = subprocess.Popen(command(job, *options(name, *settings)), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: list_checkpoints(run(job, name) / "checkpoints")[1:])
    return process


@pytest.mark.nightly
def test_killed_and_resumed_with_the_same_bits(job: Path, undisturbed_run: Path) -> None:
    running = begin_run(job, "killed", *TOGETHER)
    os.kill(find_follower(running.pid), signal.SIGKILL)
    _, error = running.communicate(timeout=200)
    assert running.returncode == 8, error
    assert "resumed from step-" in run_to_end(job, "killed", *TOGETHER)
    assert have_same_weights(undisturbed_run, run(job, "killed"))
    assert read_rows(undisturbed_run) == read_rows(run(job, "killed"))


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["commit checkpoint", "tensors written"])
def test_killed_inside_a_save_it_resumes_from_the_one_before(job: Path, undisturbed_run: Path, moment: str) -> None:
    name = moment.split()[0]
    arguments = [sys.executable, "-m", "tests.faults.driver", *command(job, *options(name, *TOGETHER))[3:]]
    environment = os.environ | {"FAULT": f"{moment}:4:kill"}
    process = subprocess.run(
        arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert process.returncode in (8, 137), process.stderr
    folder = run(job, name) / "checkpoints"
    steps_before = [parse_suffix(path) for path in list_checkpoints(folder)]
    assert f"resumed from step-{steps_before[-1]}" in run_to_end(job, name, *TOGETHER)
    assert have_same_weights(undisturbed_run, run(job, name))
    assert read_rows(undisturbed_run) == read_rows(run(job, name))
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".safetensors", ".json"}, "no code"
    assert not list(folder.glob(".*")), "nothing is left behind"
    plan = json.loads((run(job, name) / "plan.json").read_text())
    assert plan["seen"]["sharding"] == {"asked": True, "seen": True, "same": True, "cause": None}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (TOGETHER, ("limits.processes=3", "optimize.sharding=true")),
        (TOGETHER, ("limits.processes=1", "optimize.sharding=auto")),
        (("limits.processes=2",), TOGETHER),
        (("limits.processes=3", "optimize.sharding=true"), ("limits.processes=2", "optimize.sharding=false")),
    ],
    ids=["2 to 3", "2 to 1", "whole to divided", "divided to whole"],
)
def test_other_numbers_of_processes_resume(
    job: Path, undisturbed_run: Path, first: tuple[str, ...], second: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id.replace(" ", "-")
    running = begin_run(job, name, *first)
    running.send_signal(signal.SIGTERM)
    _, error = running.communicate(timeout=200)
    assert running.returncode == 75, error
    assert "resumed from step-" in run_to_end(job, name, *second)
    one, two = read_rows(undisturbed_run), read_rows(run(job, name))
    assert [row["step"] for row in one] == [row["step"] for row in two]
    run_losses = [[row["train/loss"] for row in run_rows if "train/loss" in row] for run_rows in (one, two)]
    np.testing.assert_allclose(run_losses[0], run_losses[1], rtol=1e-4)
    for key, value in load_weights(run(job, name)).items():
        np.testing.assert_allclose(value, load_weights(undisturbed_run)[key], rtol=1e-2, atol=1e-4)


def test_each_process_holds_its_part_alone(tmp_path: Path) -> None:
    outputs = ranks_start.run_ranks([sys.executable, "-m", "tests.sharding_memory", str(tmp_path)], 2)
    for output in outputs:
        sizes = json.loads(output.splitlines()[-1])
        assert sizes["parameters"] < 0.55 * sizes["whole"]
        assert sizes["moments"] < 2 * 0.55 * sizes["whole"]
        assert sizes["average"] < 0.55 * sizes["whole"]


WHO = {"numbers": "1", "signal": "1", "signal in the evaluation": "1", "time": "0", "buffer in a save": "01"}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """How runs of two processes ended in each, with whole and with divided weights."""
    folder = tmp_path_factory.mktemp("faults")
    cases = [f"{fault}{kind}@{who}" for fault, who in WHO.items() for kind in ("", ", divided")]
    return ranks_cases.run_cases(folder, cases, 2, "ranks_faults", 600)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", WHO)
def test_faults_end_as_with_whole_weights(faults: list[dict[str, Any]], fault: str) -> None:
    for endings in faults:
        undivided, divided = (endings[f"{fault}{kind}@{WHO[fault]}"] for kind in ("", ", divided"))
        for key in ("code", "rollbacks", "skip"):
            assert divided[key] == undivided[key], f"{key}: {divided['reason']}"
        # The others need this process's part of the weights, so a signal waits for the end of a step.
        assert divided["step"] == undivided["step"] + (fault == "signal"), divided["reason"]


@pytest.mark.nightly
def test_memory_that_runs_out_ends_the_process_and_the_others_learn_why(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "tests.ranks_faults", str(tmp_path), "memory, divided@1"]
    ranks_start.wait_for_ranks(arguments, 2)
    ending = json.loads((tmp_path / "1.json").read_text())["memory, divided@1"]
    assert ending["code"] == RestartSmaller.exit_code
    assert "optimize.micro_batch: 4" in ending["reason"]


@pytest.mark.nightly
def test_memory_that_runs_out_starts_all_again_with_smaller_micro_batches(job: Path) -> None:
    arguments = [sys.executable, "-m", "tests.sharding_short", *command(job, *options("short", *TOGETHER))[3:]]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    events = (run(job, "short") / "events.jsonl").read_text()
    assert says(events, "restarting-last-checkpoint", "optimize.micro_batch", 4)


@pytest.mark.nightly
def test_a_folder_that_others_do_not_see_is_refused(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "tests.sharding_apart", str(tmp_path)]
    for output in ranks_start.run_ranks(arguments, 2):
        assert "does not see" in output
        assert says(output, "run-folder-free-space")


LARGE = Workload(parameters=7_000_000_000, trainable=7_000_000_000)


def test_it_is_chosen_where_the_network_does_not_fit_each_process() -> None:
    one_gpu = load_facts(paths.MACHINES / "h100.json")
    two_gpus = replace(one_gpu, gpus=(one_gpu.gpus[0], replace(one_gpu.gpus[0], index=1)))
    tiny_job = tiny.job()
    choice = sharding.choose(tiny_job, two_gpus, LARGE)
    assert choice.value is True
    assert says(choice.reason, "all-processes-share-them")
    small = replace(LARGE, parameters=11_000_000, trainable=11_000_000)
    assert sharding.choose(tiny_job, two_gpus, small).value is False
    assert sharding.lacks(tiny_job, one_gpu) == "one process here"
    assert sharding.choose(tiny_job, one_gpu, LARGE).value is False
    for optimization in (channels_last, compile, feature_cache):
        refusal = optimization.refuse(tiny_job, two_gpus, LARGE, True)
        assert refusal
    assert says(str(compile.refuse(tiny_job, two_gpus, LARGE, True)), "divides-weights", "optimize.sharding")


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ("compile: true", "optimize.compile compiles whole weights"),
        ("channels_last: true", "optimize.channels_last lays weights out in an order that cannot be divided"),
    ],
)
def test_what_needs_whole_weights_is_refused_beside_it(keys: str, refusal: str) -> None:
    machine = replace(tiny.machine(), shared_by=1)
    tiny_job = tiny.job(optimize=keys, sections="limits: {processes: 2}")
    assert refusal in str(sharding.refuse(tiny_job, machine, None, True))


def test_sgd_updates_divided_weights_without_its_fused_kernel() -> None:
    """The first step ended in a traceback: the kernel has no form for parts of tensors."""
    machine = replace(tiny.machine(), shared_by=1)
    processes = "limits: {processes: 2}"
    sgd, adam = (
        tiny.job(f"optimizer: {{name: {name}}}", optimize="sharding: true", sections=processes)
        for name in ("sgd", "adam")
    )
    choice = fused_optimizer.choose(sgd, machine, None)
    assert choice.value is False
    assert says(choice.reason, "fused-sgd-kernel-needs", "optimize.sharding")
    assert fused_optimizer.choose(adam, machine, None).value is True
    assert fused_optimizer.choose(tiny.job("optimizer: {name: sgd}", sections=processes), machine, None).value is True
    fused_sgd = tiny.job("optimizer: {name: sgd}", optimize="fused_optimizer: true", sections=processes)
    assert fused_optimizer.refuse(fused_sgd, machine, None, True) is None
    assert says(
        str(sharding.refuse(fused_sgd, machine, None, True)), "updates-whole-weights", "optimize.fused_optimizer"
    )


def test_divided_weights_of_another_network_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As whole ones are: a tensor that is missing, and one too many."""
    monkeypatch.setattr(sharded_tensor, "is_sharded", lambda tensor: True)
    monkeypatch.setattr(sharded_tensor, "get_local_part", lambda tensor: tensor)
    network = nn.Linear(2, 2)
    state = {name: value.clone() for name, value in sharded_tensor.get_local_state(network).items()}
    sharded_tensor.load_local_state(network, state)
    for wrong in (state | {"more": torch.zeros(1)}, {"weight": state["weight"]}):
        with pytest.raises(CheckpointError, check=saying("not-those-of-this-network")):
            sharded_tensor.load_local_state(network, wrong)
