"""The end of a group of processes: nobody counts as lost who has only left, early or late, and a group may form again."""

from __future__ import annotations

import sys

from tests import ranks_start

START = """
import os, sys, time, torch
from runtime.distributed.ranks import join_ranks
rank = int(os.environ["DRIVETRAIN_RANK"])
"""


def ended(code: str, count: int) -> list[str]:
    return ranks_start.finished([sys.executable, "-c", START + code], count, seconds=120)


def test_rank_0_may_leave_long_before_the_others() -> None:
    """The store ends with rank 0; the others have nothing more to ask."""
    late = """
ranks = join_ranks(torch.device("cpu"))
ranks.barrier()
time.sleep(4.0 * rank)
ranks.leave()
print("left", rank)
"""
    assert ended(late, 2) == ["left 0\n", "left 1\n"]


def test_a_process_may_leave_long_before_rank_0() -> None:
    early = """
ranks = join_ranks(torch.device("cpu"))
ranks.barrier()
time.sleep(4.0 * (rank == 0))
ranks.leave()
print("left", rank)
"""
    assert ended(early, 2) == ["left 0\n", "left 1\n"]


def test_groups_of_the_same_processes_do_not_meet_each_others_addresses() -> None:
    again = """
for number in range(5):
    ranks = join_ranks(torch.device("cpu"))
    assert float(ranks.all_reduce_sum([torch.tensor(float(number))])[0]) == number * ranks.count
    ranks.leave()
"""
    assert ended(again, 3) == ["", "", ""]


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
    codes, said = ranks_start.ended([sys.executable, "-c", START + code], 3, seconds=120)
    assert codes == [8, 12, 8]
    assert "no memory in process 2" in said[0]
    assert "no memory in process 2" in said[2]


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
    codes, said = ranks_start.ended([sys.executable, "-c", START + code], 2, seconds=120)
    assert codes == [8, 8]
    assert said[0] == "written\n"
    assert "rank 1 is lost" in said[1]
