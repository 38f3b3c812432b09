"""The first words between the processes of a run: all train the same job, in the same image, from the leader's records.

The leader's run folder is the truth. Every other process has a folder of its own, perhaps on another machine, and gets
from the leader what its training depends on: the plan, what was computed from the data, and whether the run resumes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from drivetrain.data.custom import user_code
from drivetrain.distributed import store as stores
from drivetrain.distributed.world import NODES, RANK, WORLD_SIZE
from drivetrain.errors import DeviceError, DrivetrainError, PeerError, SpecError
from drivetrain.job import Job
from drivetrain.system.files import write_text
from drivetrain.system.run_files import RunFiles
from drivetrain.system.version import VERSION
from drivetrain.training.checkpoints import checkpoint

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

FILES = ("plan.json", "data.json", "preprocessing.json", "extension.json")
"""What a process reads of the leader's folder before it trains."""
REPORT_INTERVAL = 20
"""Seconds between two lines that say who is missing."""
CHECK_INTERVAL = 0.1
"""Seconds between two looks."""
READ_WITHIN = 10.0
"""Seconds that the leader waits until all others have read why the run does not begin."""
MAX_LISTED = 3
"""Largest number of different keys that are listed."""
ERRORS: Mapping[int, type[DrivetrainError]] = {each.exit_code: each for each in (SpecError, DeviceError)}


def introduce(folder: Path, job: Job, say: Callable[[str], None]) -> None:
    """Wait until all processes of the run are there, and give each the leader's records; nothing with one process.

    Args:
        folder: of this process.
        job: the spec as this process has read it.
        say: prints a line while others are missing.

    Raises:
        SpecError: if a process has another spec or another number of processes.
        DeviceError: if a process has another image, torch, GPU or CPU.
        PeerError: if a process does not come.
    """
    count = int(os.environ.get(WORLD_SIZE, "1"))
    if count == 1:
        return
    rank, store = int(os.environ[RANK]), stores.meeting_store()
    if rank == 0:
        _lead(folder, job, count, store, say)
    else:
        _follow(folder, job, rank, store, say)


def _lead(folder: Path, job: Job, count: int, store: Store, say: Callable[[str], None]) -> None:
    files = {name: (folder / name).read_text(encoding="utf-8") for name in FILES if (folder / name).exists()}
    store.set(
        "leader",
        json.dumps(_own(folder, job) | {"files": files, "resumes": bool(checkpoint.steps(folder / "checkpoints"))}),
    )
    problem = None
    for rank in range(1, count):
        where = f"rank {rank} of {count}"
        answer = json.loads(_wait_for_key(store, f"hello/{rank}", f"{where} has not come yet", say))
        problem = problem or answer
    store.set("go", json.dumps(problem))
    if problem:
        # The store ends with this process, and the others must have read why.
        end = time.monotonic() + READ_WITHIN
        while not store.check([f"read/{rank}" for rank in range(1, count)]) and time.monotonic() < end:
            time.sleep(CHECK_INTERVAL)
    _raise(problem)


def _follow(folder: Path, job: Job, rank: int, store: Store, say: Callable[[str], None]) -> None:
    leader = json.loads(_wait_for_key(store, "leader", "the leader has not come yet", say))
    store.set(f"hello/{rank}", json.dumps(_unlike(leader, _own(folder, job), rank)))
    # The leader may be waiting for others for as long as we have waited for it.
    problem = json.loads(_wait_for_key(store, "go", "the leader waits for the others", say))
    store.set(f"read/{rank}", "")
    _raise(problem)
    for name in FILES:
        if name in leader["files"]:
            write_text(folder / name, leader["files"][name])
        else:
            (folder / name).unlink(missing_ok=True)
    RunFiles(folder).write_json(checkpoint.LEADER, {"resumes": leader["resumes"]})


def _own(folder: Path, job: Job) -> dict[str, Any]:
    machine = RunFiles(folder).read_json("hardware.json")
    gpus = sorted({gpu["name"] for gpu in machine["gpus"]})
    # Rounding depends on the processor's instructions where it computes.
    chip = ", ".join(gpus) if gpus else machine["cpu"]["model"]
    return {
        "node": stores.node_name(),
        "processes": f"{os.environ[WORLD_SIZE]} on {os.environ.get(NODES, '1')}",
        "spec": job.dump(),
        "code": user_code.open_code(job.folder).digests_of_copy(),
        "drivetrain": VERSION,
        "image": machine["image"] or "none",
        "torch": str(torch.__version__),
        "GPU" if gpus else "CPU": chip,
    }


def _unlike(leader: Mapping[str, Any], follower: Mapping[str, Any], rank: int) -> dict[str, Any] | None:
    """The parts of the error about how this process differs from the leader; None if it does not."""
    who = f"rank {rank} on node {follower['node']}"
    if keys := list(_different(leader["spec"], follower["spec"])):
        listed = "; ".join(keys[:MAX_LISTED]) + (
            f"; and {len(keys) - MAX_LISTED} more" if len(keys) > MAX_LISTED else ""
        )
        return {
            "exit_code": SpecError.exit_code,
            "parts": [
                f"{who} has another job than the leader on node {leader['node']}: {listed}",
                "one job file for all nodes, with the same --set",
                "copy the leader's job file to that node",
            ],
        }
    code, theirs = follower["code"], leader.get("code", {})
    if other := sorted(name for name in code.keys() | theirs.keys() if code.get(name) != theirs.get(name)):
        return {
            "exit_code": SpecError.exit_code,
            "parts": [
                f"{who} has another {', '.join(other[:MAX_LISTED])} than the leader on node {leader['node']}",
                "the same code of the job on all nodes",
                "copy the leader's files to that node, then start all nodes again",
            ],
        }
    if follower["processes"] != leader["processes"]:
        return {
            "exit_code": SpecError.exit_code,
            "parts": [
                f"{who} expects {follower['processes']} nodes in all, and the leader on node {leader['node']} "
                f"{leader['processes']}",
                "the same number of nodes and of processes on each of them",
                "use nodes with as many GPUs, or set limits.gpus or limits.processes",
            ],
        }
    for key in ("drivetrain", "image", "torch", "GPU", "CPU"):
        one, two = leader.get(key, "none"), follower.get(key, "none")
        if one != two:
            return {
                "exit_code": DeviceError.exit_code,
                "parts": [
                    f"{key} on node {follower['node']} (rank {rank}) is {two}, and {one} on node {leader['node']}, which leads",
                    "the same software on the same kind of chip on all nodes: results round alike there",
                    "start that node with the leader's image, or leave it out",
                ],
            }
    return None


def _different(one: Any, two: Any, key_path: str = "") -> list[str]:
    """Keys in which two specs differ, with both values."""
    if isinstance(one, dict) and isinstance(two, dict):
        return [
            line
            for key in {**one, **two}
            for line in _different(one.get(key), two.get(key), f"{key_path}.{key}".lstrip("."))
        ]
    return [] if one == two else [f"{key_path} is {json.dumps(two)}, there {json.dumps(one)}"]


def _wait_for_key(store: Store, key: str, missing: str, say: Callable[[str], None]) -> bytes:
    """The value of a key, as soon as it is there."""
    for second in range(int(stores.START_TIMEOUT.total_seconds())):
        if second and second % REPORT_INTERVAL == 0:
            say(f"waiting for the other nodes: {missing}")
        # `store.wait` would print a warning each time, and let no signal in.
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try:
                if store.check([key]):
                    return bytes(store.get(key))
            except RuntimeError as error:
                raise _leader_lost_error(str(error)) from None
            time.sleep(CHECK_INTERVAL)
    raise PeerError(
        f"{missing}, after {stores.START_TIMEOUT.total_seconds() / 60:.0f} minutes",
        "all processes of the run",
        "look at the log of that node, and run the same command again on all",
    )


def _leader_lost_error(reason: str) -> PeerError:
    return PeerError(
        f"the leader is gone: {reason.splitlines()[0][:120]}", "all processes of the run", "look at the leader's log"
    )


def _raise(problem: Mapping[str, Any] | None) -> None:
    """Raise what one of the processes has found, in all of them."""
    if problem:
        raise ERRORS[problem["exit_code"]](*problem["parts"])
