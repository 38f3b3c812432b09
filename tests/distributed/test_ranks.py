"""Several processes train one network: the same losses, every sample once, killed and resumed with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drivetrain.distributed import world
from drivetrain.distributed.batch_sharding import BatchSharding
from drivetrain.distributed.ranks import Ranks
from drivetrain.errors import SpecError
from drivetrain.hardware.facts import read_hardware
from drivetrain.optimizations import cpu_threads, feature_cache, loader_workers
from tests import ranks_start, tiny
from tests.messages import get_message, says
from tests.paths import ROOT
from tests.ranks_driver import UNFREEZE
from tests.supervisor.tiny_run import command, find_follower, have_same_weights, read_rows, train
from tests.waiting import wait_until

STEPS, SAMPLES, BATCH = 50, 62, 12


def train_in_processes(folder: Path, count: int, data: str = "") -> tuple[list[float], list[list[list[int]]]]:
    """Return the losses by step, and the samples of each process."""
    folder.mkdir()
    ranks_start.run_ranks([sys.executable, "-m", "tests.ranks_driver", str(folder), str(STEPS), data], count)
    folders = [folder, *(folder / "ranks" / str(rank) for rank in range(1, count))]
    losses = [
        [row["train/loss"] for row in read_rows(folder_of_rank) if "train/loss" in row] for folder_of_rank in folders
    ]
    assert all(rank_losses == losses[0] for rank_losses in losses)
    return losses[0], [json.loads((folder_of_rank / "trained.json").read_text()) for folder_of_rank in folders]


@pytest.mark.nightly
@pytest.mark.parametrize("data", ["", ", augment: {mixup: {alpha: 0.4}}"], ids=["plain", "mixup"])
def test_any_number_of_processes_gives_the_same_losses(tmp_path: Path, data: str) -> None:
    alone, order = train_in_processes(tmp_path / "1", 1, data)
    assert len(alone) == STEPS
    for count in (2, 4):
        losses, parts = train_in_processes(tmp_path / str(count), count, data)
        np.testing.assert_allclose(losses, alone, rtol=1e-9)
        for step, batch_ids in enumerate(order[0]):
            ids_by_process = [part[step] for part in parts]
            assert (
                ids_by_process == [batch_ids] * count
                if len(batch_ids) < 2 * count
                else [i for one in ids_by_process for i in one] == batch_ids
            )


@pytest.mark.nightly
def test_processes_unfreeze_together(tmp_path: Path) -> None:
    alone, _ = train_in_processes(tmp_path / "1", 1, UNFREEZE)
    together, _ = train_in_processes(tmp_path / "2", 2, UNFREEZE)
    np.testing.assert_allclose(together, alone, rtol=1e-9)
    assert "epoch 3: 1 unfrozen, 1,091 of 1,091 parameters" in (tmp_path / "2" / "events.jsonl").read_text()


@pytest.mark.nightly
def test_every_sample_once_an_epoch(tmp_path: Path) -> None:
    _, parts = train_in_processes(tmp_path / "4", 4)
    steps = -(-SAMPLES // BATCH)
    for epoch in range(STEPS // steps):
        epoch_ids = [i for part in parts for ids in part[epoch * steps : (epoch + 1) * steps] for i in ids]
        if SAMPLES % BATCH >= 8:
            assert sorted(epoch_ids) == list(range(SAMPLES))
        else:  # fewer than two samples for each process: each takes all of them, and they count once together
            assert sorted(set(epoch_ids)) == list(range(SAMPLES))
            assert len(epoch_ids) == SAMPLES + 3 * (SAMPLES % BATCH)


@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 12])
def test_shards_make_up_the_batch(size: int) -> None:
    ids = np.arange(size)
    shardings = [BatchSharding(Ranks(rank, 4), 12) for rank in range(4)]
    parts = [sharding.select_local(ids) for sharding in shardings]
    shares = [sharding.share(size, 0) for sharding in shardings]
    # A mean is divided by the samples of all ranks, and a sum is weighted, so each sample counts once.
    assert {share.samples for share in shares} == {sum(map(len, parts))}
    assert {share.weight * len(shares) for share in shares} == {1.0 if size >= 8 else 4.0}
    if size >= 8:
        assert np.concatenate(parts).tolist() == ids.tolist()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert all(part.tolist() == ids.tolist() for part in parts)


TOGETHER = ("--set", "limits.processes=2")


@pytest.mark.nightly
def test_a_lost_process_ends_the_run_and_a_resume_gives_the_same_bits(job: Path) -> None:
    broken = ("--set", "name=broken", "--set", "train.epochs=20")
    running = subprocess.Popen(command(job, *TOGETHER, *broken), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    metrics = job.parent / "runs" / "broken-001" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 20)
    os.kill(find_follower(running.pid), signal.SIGKILL)
    _, error = running.communicate(timeout=120)
    assert running.returncode == 8
    assert says(error, "another-process-run-died")
    resumption = train(job, *TOGETHER, *broken)
    assert resumption.returncode == 0, resumption.stderr
    assert "resumed from step-" in resumption.stdout
    calm = train(job, *TOGETHER, "--set", "train.epochs=20", "--set", "name=calm")
    assert calm.returncode == 0, calm.stderr
    assert says(calm.stdout, "processes-trains-share-every", 2)
    assert have_same_weights(job.parent / "runs" / "calm-001", job.parent / "runs" / "broken-001")
    assert read_rows(job.parent / "runs" / "calm-001") == read_rows(job.parent / "runs" / "broken-001")


def test_memory_that_runs_out_starts_all_again_with_smaller_micro_batches(job: Path) -> None:
    arguments = [sys.executable, "-m", "tests.ranks_short", *command(job, *TOGETHER)[3:]]
    # DistributedDataParallel needs the compiler, which makes its folder though nothing is compiled.
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{job}/cache"}
    done = subprocess.run(arguments, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    events = (job.parent / "runs" / "tiny-001" / "events.jsonl").read_text()
    assert says(events, "restarting-last-checkpoint", "optimize.micro_batch", 4)


@pytest.mark.parametrize(
    "to", ["supervisor", "follower", pytest.param("leader and follower", marks=pytest.mark.nightly)]
)
def test_a_signal_stops_all_of_them_and_the_leader_saves(job: Path, to: str) -> None:
    long = (*TOGETHER, "--set", "train.epochs=400")
    running = subprocess.Popen(command(job, *long), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = job.parent / "runs" / "tiny-001" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 10)
    other = find_follower(running.pid)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    targets = {"supervisor": [running.pid], "follower": [other], "leader and follower": map(int, children)}
    for target in targets[to]:
        os.kill(target, signal.SIGTERM)
    _, error = running.communicate(timeout=120)
    assert running.returncode == 75, error
    assert "saved as" in error
    assert not Path(f"/proc/{other}").exists()


def test_processes_share_cpus_and_memory_and_a_program_trains_alone() -> None:
    one = read_hardware(ROOT / "tests" / "machines" / "a100.json")
    four = replace(one, gpus=one.gpus[:1] * 4)
    assert four.cpu.budget == 12
    together = tiny.job()
    assert cpu_threads.choose(together, four, None).value == 6 // 4
    workers = loader_workers.choose(together, four, None)
    assert (workers.value, get_message("available-cpus-shared-processes", 12, 4) in workers.reason) == (2, True)
    program = together.model_copy(update={"task": "python"})
    assert world.count_local_ranks(program, four) == 1
    assert cpu_threads.choose(program, four, None).value == 6
    room = four.memory.available // 5
    assert feature_cache._place(program, four, room) == "memory"
    assert feature_cache._place(together, four, room) != "memory"


@pytest.mark.parametrize(
    ("gpus", "processes", "count"), [(0, None, 1), (0, 3, 3), (2, None, 2), (2, 2, 2), (2, 3, None)]
)
def test_how_many_processes(gpus: int, processes: int | None, count: int | None) -> None:
    machine = read_hardware(ROOT / "tests" / "machines" / "a100.json")
    machine = replace(machine, gpus=machine.gpus[:1] * gpus)
    job = tiny.job()
    job = job.model_copy(update={"limits": job.limits.model_copy(update={"processes": processes})})
    assert count is None or world.count_trainers(job, machine) == count
    if count is None:
        with pytest.raises(SpecError, match=r"limits.processes: is 3, and 2 GPUs are used"):
            world.check_world_size(job, machine)
    else:
        world.check_world_size(job, machine)
