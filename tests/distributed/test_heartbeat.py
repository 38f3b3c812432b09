"""The end of a group of processes: nobody counts as lost who has only left, early or late, and a group may form again."""

from __future__ import annotations

import sys
import time

import pytest

from drivetrain.distributed.heartbeat import Heartbeat
from tests import ranks_start
from tests.messages import says

START = """
import os, sys, time, torch
from drivetrain.distributed.ranks import join_ranks
rank = int(os.environ["DRIVETRAIN_RANK"])
"""


def run_processes(code: str, count: int) -> list[str]:
    return ranks_start.run_ranks([sys.executable, "-c", START + code], count, seconds=120)


def test_rank_0_may_leave_long_before_the_others() -> None:
    """The store ends with rank 0; the others have nothing more to ask."""
    program = """
ranks = join_ranks(torch.device("cpu"))
ranks.barrier()
time.sleep(4.0 * rank)
ranks.leave()
print("left", rank)
"""
    assert run_processes(program, 2) == ["left 0\n", "left 1\n"]


def test_a_process_may_leave_long_before_rank_0() -> None:
    early = """
ranks = join_ranks(torch.device("cpu"))
ranks.barrier()
time.sleep(4.0 * (rank == 0))
ranks.leave()
print("left", rank)
"""
    assert run_processes(early, 2) == ["left 0\n", "left 1\n"]


def test_groups_of_the_same_processes_do_not_meet_each_others_addresses() -> None:
    program = """
for number in range(5):
    ranks = join_ranks(torch.device("cpu"))
    assert float(ranks.all_reduce_sum([torch.tensor(float(number))])[0]) == number * ranks.count
    ranks.leave()
"""
    assert run_processes(program, 3) == ["", "", ""]


def test_who_gives_up_tells_the_others_why() -> None:
    """The others wait in an exchange; rank 0 too, which looks for no silence yet."""
    code = """
ranks = join_ranks(torch.device("cpu"))
ranks.barrier()
if rank == 1:
    ranks.heartbeat.give_up("no memory in process 2")
    os._exit(12)
ranks.barrier()
"""
    codes, outputs = ranks_start.wait_for_ranks([sys.executable, "-c", START + code], 3, seconds=120)
    assert codes == [8, 12, 8]
    assert says(outputs[0], "no-memory-in-process", 2)
    assert says(outputs[2], "no-memory-in-process", 2)


def test_rank_0_ends_in_order_after_it_has_told_who_is_lost() -> None:
    code = """
ranks = join_ranks(torch.device("cpu"))
ranks.barrier()
if rank == 0:
    ranks.heartbeat.publish("rank 1 is lost")
    time.sleep(6)
    print("written", flush=True)
    os._exit(8)
time.sleep(60)
"""
    codes, outputs = ranks_start.wait_for_ranks([sys.executable, "-c", START + code], 2, seconds=120)
    assert codes == [8, 8]
    assert outputs[0] == "written\n"
    assert "rank 1 is lost" in outputs[1]


@pytest.mark.parametrize(
    ("waited_seconds", "unfinished_bytes", "other_state", "silent_seconds", "stalled"),
    [
        (50.0, 0, "waits", 1.0, True),
        (50.0, 0, "waits", 20.0, True),
        (50.0, 0, "-", 20.0, True),
        # It computes, saves or decodes.
        (50.0, 0, "-", 1.0, False),
        # A slow link: 25 MB take 25 s more.
        (60.0, 25_000_000, "waits", 1.0, False),
        (80.0, 25_000_000, "waits", 1.0, True),
        (30.0, 0, "waits", 20.0, False),
    ],
)
def test_an_exchange_that_stands_still(
    waited_seconds: float, unfinished_bytes: int, other_state: str, silent_seconds: float, stalled: bool
) -> None:
    now = time.monotonic()
    heartbeat = object.__new__(Heartbeat)
    heartbeat.rank, heartbeat._waiting_since, heartbeat._unfinished_bytes = 0, now - waited_seconds, unfinished_bytes
    heartbeat._signs = {
        1: ("7 node1 waits step 5, exchange", now - 0.5),
        2: (f"9 node2 {other_state} step 5, exchange", now - silent_seconds),
    }
    description = heartbeat._describe_stalled_exchange()
    assert bool(description) == stalled
    if stalled:
        assert says(description, "rank-node-node-heard", 2 if silent_seconds > 0.5 else 1)
        assert says(description, "last-seen-step-exchange", 5)
