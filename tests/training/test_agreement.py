"""What one of several processes meets, all of them act on, at the same step: no peer is lost, no two ways are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import DeviceError, PeerError
from drivetrain.system import torch_errors
from drivetrain.system.run_files import list_checkpoints
from tests import ranks_cases
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
BACKWARD = ["memory in the backward pass@0", "memory in the backward pass@1"]
REPEATS = ["memory@0", "memory@1", "half an update@0", "half an update@1", "buffer in a save@0", "buffer in a save@1"]
NUMBERS = ["numbers@1", "numbers, read late@1"]
CASES = ["nothing@", *NUMBERS, "time@1", "other metrics@1", "micro-batch of 4@01", *STOPS, *BACKWARD, *REPEATS]
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
def test_all_processes_repeat_a_step_that_one_must_repeat(ends_by_case: dict[str, Ends], case: str) -> None:
    leader, other = ends_by_case[case]
    assert (leader["code"], other["code"]) == (0, 0), (leader, other)
    assert leader == other
    if case.startswith("memory"):
        assert leader["micro_batch"] == 4
        assert leader["weights"] == ends_by_case["micro-batch of 4@01"][0]["weights"]
    elif case.startswith("half"):
        assert leader["micro_batch"] == 4
        assert leader["weights"] == ends_by_case["half an update@0"][0]["weights"]
    else:
        assert leader["rollbacks"] == (1 if case.endswith("@0") else 0)
        assert leader["weights"] == ends_by_case["nothing@"][0]["weights"]


@pytest.mark.parametrize("case", BACKWARD)
def test_memory_that_runs_out_while_gradients_are_sent_repeats_the_step_in_all(
    ends_by_case: dict[str, Ends], case: str
) -> None:
    leader, other = ends_by_case[case]
    assert leader == other
    assert (leader["code"], leader["micro_batch"], leader["rollbacks"]) == (0, 4, 0)
    assert leader["weights"] == ends_by_case[BACKWARD[0]][0]["weights"] != ends_by_case["nothing@"][0]["weights"]


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
