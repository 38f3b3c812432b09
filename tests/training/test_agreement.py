"""All processes act on a problem of one of them in the same step: none is lost, and none takes another path."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import DeviceError, PeerError, RestartSmaller
from drivetrain.system import torch_errors
from drivetrain.system.run_files import list_checkpoints
from tests import ranks_cases, ranks_start
from tests.messages import says

STOPS = [
    "time@0",
    "time@01",
    "signal@0",
    "signal@1",
    "signal@01",
    "signal in the evaluation@1",
    "signal in the evaluation@01",
]
REPEATS = ["buffer in a save@0", "buffer in a save@1"]
NUMBERS = ["numbers@1", "numbers, read late@1"]
CASES = ["nothing@", *NUMBERS, "time@1", "other metrics@1", *STOPS, *REPEATS]
Ends = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def ends_by_case(folder: Path) -> dict[str, Ends]:
    """How each case ended, in the leader and in the other process."""
    process_results = ranks_cases.run_cases(folder, CASES, 2, "ranks_faults")
    return {case: [results[case] for results in process_results] for case in CASES}


@pytest.mark.parametrize("case", STOPS)
def test_all_stop_at_one_step_and_the_leader_saves(ends_by_case: dict[str, Ends], folder: Path, case: str) -> None:
    leader, other = ends_by_case[case]
    step = 5 if case.startswith("time") else 4
    assert (leader["code"], other["code"]) == (75, 75), (leader, other)
    assert (leader["step"], other["step"]) == (step, step)
    assert list_checkpoints(folder / case / "checkpoints")[-1].name == f"step-{step}"
    expected_reason = "max_time of 1h has passed" if case.startswith("time") else "stopped by "
    assert expected_reason in leader["reason"]
    if case == "signal@1":
        assert says(leader["reason"], "stopped-signal-process-after", 2, 2, 4)


@pytest.mark.parametrize("case", ["time@1", "other metrics@1"])
def test_the_leader_decides_about_time_and_metrics(ends_by_case: dict[str, Ends], case: str) -> None:
    leader, other = ends_by_case[case]
    assert (leader["code"], leader["reason"]) == (other["code"], other["reason"]) == (0, "all 3 epochs trained")
    assert leader["weights"] == other["weights"] == ends_by_case["nothing@"][0]["weights"]


@pytest.mark.parametrize("case", REPEATS)
def test_all_go_back_if_one_must(ends_by_case: dict[str, Ends], case: str) -> None:
    leader, other = ends_by_case[case]
    assert (leader["code"], other["code"]) == (0, 0), (leader, other)
    assert leader == other
    assert leader["rollbacks"] == (1 if case.endswith("@0") else 0)
    assert leader["weights"] == ends_by_case["nothing@"][0]["weights"]


@pytest.mark.parametrize(
    "fault", ["memory", pytest.param("memory in the backward pass", marks=pytest.mark.nightly), "half an update"]
)
def test_memory_that_runs_out_in_one_process_ends_all(tmp_path: Path, fault: str) -> None:
    """The supervisor starts them again with smaller micro-batches."""
    command = [sys.executable, "-m", "tests.ranks_faults", str(tmp_path), f"{fault}@1"]
    _, outputs = ranks_start.wait_for_ranks(command, 2)
    ending = json.loads((tmp_path / "1.json").read_text())[f"{fault}@1"]
    assert ending["code"] == RestartSmaller.exit_code, outputs
    assert says(ending["reason"], "memory-ran-out-process", 2, 2, 8)
    leader = json.loads((tmp_path / "0.json").read_text())[f"{fault}@1"]
    assert leader["code"] == PeerError.exit_code, outputs
    assert says(leader["reason"], "memory-ran-out-process", 2, 2, 8), "it has not met the problem itself"


def test_all_skip_the_same_batches_whenever_they_read_a_result(ends_by_case: dict[str, Ends]) -> None:
    read_at_once, read_late = (ends_by_case[case] for case in NUMBERS)
    assert read_at_once[0] == read_at_once[1] == read_late[0] == read_late[1]
    assert (read_at_once[0]["rollbacks"], read_at_once[0]["skip"]) == (1, [[1, 0], [1, 1], [1, 2]])


@pytest.mark.parametrize(
    "message",
    [
        "NCCL error in: ProcessGroupNCCL.cpp:94, remote process exited",
        "[Rank 0] NCCL communicator was aborted on rank 0.",
    ],
)
def test_a_lost_process_is_reported_wherever_it_is_noticed(message: str) -> None:
    error = torch_errors.translate_error(RuntimeError(message))
    assert isinstance(error, PeerError)
    assert error.exit_code == 8
    assert isinstance(torch_errors.translate_error(RuntimeError("CUDA error: an illegal memory access")), DeviceError)
