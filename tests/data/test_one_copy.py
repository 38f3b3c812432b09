"""The processes of a machine share the arrays of their data: the same samples, one copy, and whoever differs keeps its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow
import pytest
import torch

from drivetrain.data import one_copy
from drivetrain.data.custom import map_dataset
from drivetrain.data.dataset import Dataset, Split
from drivetrain.data.load_data import load
from drivetrain.data.one_copy import ArrayHolder
from drivetrain.distributed.ranks import ALONE
from drivetrain.job_spec import load_job as job_spec
from jobs.samples.write import write
from tests import ranks_start
from tests.data.memory_arrays import MemoryArrays
from tests.messages import get_message
from tests.paths import ROOT


def columns() -> tuple[Any, ...]:
    """One array of each kind, above and below the limit, and one twice."""
    pixels = torch.arange(3 << 19, dtype=torch.int32).reshape(3, -1)
    texts = pyarrow.chunked_array([[f"text {i}" for i in range(n)] + [None] for n in (70_000, 50_000)])
    small, half = torch.arange(9), torch.ones(1 << 20, dtype=torch.bfloat16)
    return pixels, np.arange(1 << 18, dtype=np.float64), texts, pixels, small, half, np.arange(1 << 18) > 7


def are_equal(one: Any, two: Any) -> bool:
    if isinstance(one, pyarrow.ChunkedArray):
        return bool(one.equals(two))
    return np.array_equal(*(x.view(torch.int16).numpy() if isinstance(x, torch.Tensor) else x for x in (one, two)))


def share_between(first: list[Any], second: list[Any]) -> int:
    """What two processes do, in one: returns the bytes that the second one maps."""
    handle = one_copy._move_to_file(first, len(one_copy._list_arrays(first)))
    try:
        return one_copy._map_from_file(second, len(one_copy._list_arrays(second)), handle)
    finally:
        os.close(handle)


def test_arrays_of_all_kinds_are_shared() -> None:
    one, two = MemoryArrays(*columns()), MemoryArrays(*columns())
    small = two.arrays[4]
    assert share_between([one], [two]) > 11 << 20
    for holder in (one, two):
        assert one_copy._list_arrays([holder]) == []  # they lie in a file now
        assert all(map(are_equal, holder.arrays, columns()))
        assert holder.arrays[0] is holder.arrays[3]
    assert two.arrays[4] is small
    two.arrays[0][0, 0] = 9  # a write stays in its process
    assert int(one.arrays[0][0, 0]) == 0


def test_who_has_other_bytes_keeps_them() -> None:
    one, two = MemoryArrays(*columns()), MemoryArrays(*columns())
    two.arrays[0][2, 7] += 1
    changed_array = two.arrays[0]
    share_between([one], [two])
    assert two.arrays[0] is changed_array
    assert one_copy._list_arrays([two]) == [changed_array]
    assert all(map(are_equal, two.arrays[1:3], columns()[1:3]))


def test_what_is_mapped_already_is_left_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(1 << 18))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    strided = torch.zeros(1 << 10, 1 << 10).T
    assert one_copy._list_arrays([MemoryArrays(mapped, torch.from_numpy(mapped), strided)]) == []


def gather_all(split: Split) -> list[torch.Tensor]:
    return [*split.gather(np.arange(len(split))), *split.targets.values()]


EXAMPLES = {
    "digits": ("", ""),
    "reports": ("reports", "reports.csv"),
    "series": ("series", "train.csv"),
    "table": ("table", "train.parquet"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_samples_of_each_task_stay_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, file = EXAMPLES[name]
    if kind:
        write(kind, tmp_path / "data", 4000 if kind == "series" else 400, 0)
    job = job_spec.load(ROOT / "jobs" / f"{name}.yaml", [f"data.train={tmp_path}/data/{file}"] if kind else [])
    plain, *both = (load(job) for _ in range(3))
    monkeypatch.setattr(one_copy, "MIN_SHARED_BYTES", 1)
    holders = [cast(list[Any], [data.train, data.validation]) for data in both]
    assert all(isinstance(split, ArrayHolder) for split in holders[0])
    inputs = sum(x.nbytes for x in plain.train.gather(np.arange(len(plain.train))))
    assert share_between(*holders) > inputs // 16  # windows overlap, and tokens are padded when they are gathered
    for data in both:
        for one, two in ((plain.train, data.train), (plain.validation, data.validation)):
            assert all(torch.equal(a, b) for a, b in zip(gather_all(one), gather_all(two), strict=True))
            assert one.title(0) == two.title(0)


def test_arrays_of_the_user_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_copy, "MIN_SHARED_BYTES", 1)
    one, two = (
        map_dataset.build_array_split(
            (np.arange(12.0).reshape(6, 2), np.arange(6)), "train", None, torch.tensor([4, 1])
        )
        for _ in range(2)
    )
    assert share_between([one], [two]) == 96 + 48
    assert two.gather(np.array([0, 1]))[0].tolist() == [[8.0, 9.0], [2.0, 3.0]]


def test_one_process_shares_nothing() -> None:
    holder: Any = MemoryArrays(*columns())
    arrays_before = holder.arrays
    assert one_copy.share(Dataset(holder, holder, {}, {}, mixable=False, notes=[]), ALONE) == ""
    assert holder.arrays is arrays_before or all(a is b for a, b in zip(holder.arrays, arrays_before, strict=True))


@pytest.mark.parametrize("preload", ["", "libtcmalloc_minimal.so.4"])
def test_what_was_moved_is_free(preload: str) -> None:
    """tcmalloc keeps what is freed, so the memory would be used twice instead of once."""
    library = Path(sys.prefix) / "lib" / preload
    if not library.exists():
        pytest.skip("no tcmalloc beside this Python (make setup)")
    code = """
import numpy as np
from drivetrain.data import one_copy
from tests.data.memory_arrays import MemoryArrays
def own():
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("RssAnon"))
lead, follow = (MemoryArrays(np.ones(16 << 20, np.uint8), np.ones(8 << 20)) for _ in range(2))
before = own()
handle = one_copy._move_to_file([lead], 2)
between = own()
one_copy._map_from_file([follow], 2, handle)
print(before - between, between - own())
"""
    environment = {**os.environ, "LD_PRELOAD": str(library) if preload else ""}
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    freed = [int(word) for word in process.stdout.split()]
    assert all(76 <= mebibytes <= 84 for mebibytes in freed), freed


def test_processes_of_a_machine_share() -> None:
    """Rank 2 has other data, so it keeps its own, and nobody waits for it."""
    code = """
import torch
from drivetrain.data import one_copy
from drivetrain.data.dataset import Dataset
from drivetrain.distributed.ranks import join_ranks
class Held:
    def __init__(self, array):
        self.array = array
    def change_arrays(self, change):
        self.array = change(self.array)
ranks = join_ranks(torch.device("cpu"))
held = Held(torch.arange(1 << 18) if ranks.number != 2 else torch.zeros(1 << 19))
words = one_copy.share(Dataset(held, held, {}, {}, mixable=False, notes=[]), ranks)
mapped = sum("drivetrain-data" in line for line in open("/proc/self/maps"))
assert ranks.number == 2 or torch.equal(held.array, torch.arange(1 << 18))
ranks.leave()
print(words, mapped)
"""
    outputs = ranks_start.run_ranks([sys.executable, "-c", code], 3, seconds=120)
    assert outputs[0] == outputs[1] == get_message("memory-mib-data-once", 2, 2, 1)
    assert outputs[2] == " 0\n"
