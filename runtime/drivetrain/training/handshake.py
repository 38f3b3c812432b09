"""Checks at the start that all processes of a run have the same job and software, and copies the leader's records.

The leader's run folder is the truth. Every other process has its own folder, perhaps on another machine, and gets the
basis of its training from the leader: the plan, values computed from the data, and whether the run resumes.
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
from drivetrain.data.notes import list_names
from drivetrain.distributed import store as stores
from drivetrain.distributed.world import NODES, RANK, WORLD_SIZE
from drivetrain.errors import DeviceError, DrivetrainError, PeerError, SpecError
from drivetrain.job import Job
from drivetrain.system import run_files
from drivetrain.system.files import write_text
from drivetrain.system.run_files import RunFiles
from drivetrain.system.version import VERSION

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LEADER_FILES = (run_files.PLAN_FILE, run_files.INPUTS_FILE)
"""Files of the leader's folder that every process gets before it trains."""
REPORT_SECONDS = 20
"""Time between two messages about a missing process."""
POLL_SECONDS = 0.1
"""Time between two checks of the store."""
READ_TIMEOUT_SECONDS = 10.0
"""Time that the leader waits for all others to read why the run does not start."""
MAX_LISTED_KEYS = 3
"""Largest number of different keys or files in an error."""
ERRORS_BY_EXIT_CODE: Mapping[int, type[DrivetrainError]] = {kind.exit_code: kind for kind in (SpecError, DeviceError)}
"""Errors that a process can report to all others, by exit code."""


def introduce(folder: Path, job: Job, say: Callable[[str], None]) -> None:
    """Wait for all processes of the run, compare them, and copy the leader's records; do nothing with one process.

    Raises:
        SpecError: if a process has another spec or another number of processes.
        DeviceError: if a process has another image, torch, GPU or CPU.
        PeerError: if a process does not connect in time.
    """
    count = int(os.environ.get(WORLD_SIZE, "1"))
    if count == 1:
        return
    rank, store = int(os.environ[RANK]), stores.connect()
    if rank == 0:
        _lead_processes(folder, job, count, store, say)
    else:
        _follow_leader(folder, job, rank, store, say)


def _lead_processes(folder: Path, job: Job, count: int, store: Store, say: Callable[[str], None]) -> None:
    files = {name: (folder / name).read_text(encoding="utf-8") for name in LEADER_FILES if (folder / name).exists()}
    resumes = bool(run_files.list_checkpoints(folder / run_files.CHECKPOINTS))
    store.set(
        "leader",
        json.dumps(_describe_process(folder, job) | {"files": files, "resumes": resumes}),
    )
    problem = None
    for rank in range(1, count):
        process = f"rank {rank} of {count}"
        difference = json.loads(_wait_for_key(store, f"hello/{rank}", f"{process} has not come yet", say))
        problem = problem or difference
    store.set("go", json.dumps(problem))
    if problem:
        # The store ends with this process, so the other processes must read the problem first.
        end = time.monotonic() + READ_TIMEOUT_SECONDS
        while not store.check([f"read/{rank}" for rank in range(1, count)]) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
    _raise_problem(problem)


def _follow_leader(folder: Path, job: Job, rank: int, store: Store, say: Callable[[str], None]) -> None:
    leader = json.loads(_wait_for_key(store, "leader", "the leader has not come yet", say))
    store.set(f"hello/{rank}", json.dumps(_find_difference(leader, _describe_process(folder, job), rank)))
    # The leader may wait as long for other processes as this process has waited for the leader.
    problem = json.loads(_wait_for_key(store, "go", "the leader waits for the others", say))
    store.set(f"read/{rank}", "")
    _raise_problem(problem)
    for name in LEADER_FILES:
        if name in leader["files"]:
            write_text(folder / name, leader["files"][name])
        else:
            (folder / name).unlink(missing_ok=True)
    RunFiles(folder).write_json(run_files.LEADER_FILE, {"resumes": leader["resumes"]})


def _describe_process(folder: Path, job: Job) -> dict[str, Any]:
    machine = RunFiles(folder).read_object(run_files.HARDWARE_FILE)
    gpus = sorted({gpu["name"] for gpu in machine["gpus"]})
    # Without a GPU, rounding depends on the CPU's instructions.
    chip = ", ".join(gpus) if gpus else machine["cpu"]["model"]
    return {
        "node": stores.find_node_name(),
        "processes": f"{os.environ[WORLD_SIZE]} on {os.environ.get(NODES, '1')}",
        "spec": job.dump(),
        "code": user_code.open_code(job.folder).digests(),
        "drivetrain": VERSION,
        "image": machine["image"] or "none",
        "torch": str(torch.__version__),
        "GPU" if gpus else "CPU": chip,
    }


def _find_difference(leader: Mapping[str, Any], follower: Mapping[str, Any], rank: int) -> dict[str, Any] | None:
    """Find how this process differs from the leader: exit code and texts of the error; None if it does not differ."""

    def describe(kind: type[DrivetrainError], *texts: str) -> dict[str, Any]:
        return {"exit_code": kind.exit_code, "texts": texts}

    this_process, leader_process = f"rank {rank} on node {follower['node']}", f"the leader on node {leader['node']}"
    keys = _list_spec_differences(leader["spec"], follower["spec"])
    if keys:
        return describe(
            SpecError,
            f"{this_process} has a different job than {leader_process}: {list_names(keys, MAX_LISTED_KEYS, '; ')}",
            "one job file for all nodes, with the same --set",
            "copy the leader's job file to that node",
        )
    code, leader_code = follower["code"], leader["code"]
    names = code.keys() | leader_code.keys()
    other_files = sorted(name for name in names if code.get(name) != leader_code.get(name))
    if other_files:
        return describe(
            SpecError,
            f"{this_process} has a different {', '.join(other_files[:MAX_LISTED_KEYS])} than {leader_process}",
            "the same code of the job on all nodes",
            "copy the leader's files to that node, then start all nodes again",
        )
    if follower["processes"] != leader["processes"]:
        return describe(
            SpecError,
            f"{this_process} expects {follower['processes']} nodes in all, and {leader_process} {leader['processes']}",
            "the same number of nodes and of processes on each of them",
            "use nodes with as many GPUs, or set limits.gpus or limits.processes",
        )
    for key in ("drivetrain", "image", "torch", "GPU", "CPU"):
        leader_value, local_value = leader.get(key, "none"), follower.get(key, "none")
        if leader_value != local_value:
            return describe(
                DeviceError,
                f"{key} on node {follower['node']} (rank {rank}) is {local_value}, and {leader_value} on node {leader['node']}, which leads",
                "the same software and kind of chip on all nodes, so that results round alike",
                "start that node with the leader's image, or run without it",
            )
    return None


def _list_spec_differences(leader: Any, follower: Any, key_path: str = "") -> list[str]:
    """List the keys whose values differ in two specs, each with both values."""
    if isinstance(leader, dict) and isinstance(follower, dict):
        differences = []
        for key in {**leader, **follower}:
            path = f"{key_path}.{key}".lstrip(".")
            differences += _list_spec_differences(leader.get(key), follower.get(key), path)
        return differences
    if leader == follower:
        return []
    return [f"{key_path} is {json.dumps(follower)}, there {json.dumps(leader)}"]


def _wait_for_key(store: Store, key: str, missing: str, say: Callable[[str], None]) -> bytes:
    """Return the value of a key of the store, once another process has set it."""
    for second in range(int(stores.START_TIMEOUT.total_seconds())):
        if second and second % REPORT_SECONDS == 0:
            say(f"waiting for the other nodes: {missing}")
        # `store.wait` would print a warning each time and block signals.
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try:
                if store.check([key]):
                    return bytes(store.get(key))
            except RuntimeError as error:
                problem = f"the leader has ended: {str(error).splitlines()[0][:120]}"
                raise PeerError(problem, "all processes of the run", "look at the leader's log") from None
            time.sleep(POLL_SECONDS)
    raise PeerError(
        f"{missing}, after {stores.START_TIMEOUT.total_seconds() / 60:.0f} minutes",
        "all processes of the run",
        "look at the log of that node, and run the same command again on all",
    )


def _raise_problem(problem: Mapping[str, Any] | None) -> None:
    """Raise the difference that a process has found, in every process; return if there is none."""
    if problem:
        raise ERRORS_BY_EXIT_CODE[problem["exit_code"]](*problem["texts"])
