"""Gradients are summed in buckets: which are sent early, what is missing or late, and the bits after a resume."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.distributed import gradient_exchange
from drivetrain.distributed.local_processes import LocalProcesses
from tests import ranks_start
from tests.exchange_cases import STEPS

COUNT = 3
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Rows]]]:
    """By process: what it had after the exchange, and what it computes alone; by kind of network and step."""
    file = tmp_path_factory.mktemp("exchange") / "found"
    ranks_start.run_ranks([sys.executable, "-m", "tests.exchange_cases", str(file)], COUNT)
    return [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(COUNT)]


@pytest.mark.parametrize("kind", ["plain", "one", "later", "twice"])
def test_each_process_has_the_sum_and_what_none_has_stays_none(records: list[dict[str, Any]], kind: str) -> None:
    for step in range(STEPS):
        own_rows = [record["own"][kind][step] for record in records]
        for record in records:
            row = record["together"][kind][step]
            assert row["loss"] == pytest.approx(sum(own_row["loss"] for own_row in own_rows))
            for name, gradient in row["grads"].items():
                gradients = [own_row["grads"][name] for own_row in own_rows if own_row["grads"][name] is not None]
                assert (gradient is None) == (not gradients), name
                if gradients:
                    expected = np.sum(gradients, axis=0)
                    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6, err_msg=name)
            assert row == records[0]["together"][kind][step] | {"early": row["early"]}
    assert all(row["grads"]["unused.weight"] is None for row in records[0]["together"][kind])


def test_buckets_are_sent_before_the_backward_pass_ends(records: list[dict[str, Any]]) -> None:
    early = [row["early"] for row in records[0]["together"]["plain"]]
    # A layer that is never used holds its bucket back in the first pass only, in which nobody knows.
    assert early[0] == 0
    assert early[1] == early[2] > 2
    assert [row["early"] for row in records[0]["together"]["after"]] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["after", "parts"])
def test_overlap_and_micro_batches_change_nothing(records: list[dict[str, Any]], kind: str) -> None:
    for row, plain_row in zip(records[0]["together"][kind], records[0]["together"]["plain"], strict=True):
        for name, gradient in plain_row["grads"].items():
            if kind == "after":
                assert row["grads"][name] == gradient
            elif gradient is not None:
                np.testing.assert_allclose(row["grads"][name], gradient, rtol=1e-5, atol=1e-6)


def test_the_first_step_has_the_bits_of_the_others(records: list[dict[str, Any]]) -> None:
    first, *later_steps = ((row["loss"], row["grads"]) for row in records[0]["together"]["plain"])
    assert all(other == first for other in later_steps)


def test_a_gradient_that_comes_late_repeats_the_step_once(records: list[dict[str, Any]]) -> None:
    """A layer is used from the second step on, when its bucket does not wait for it any more."""
    assert [[row["tries"] for row in record["together"]["later"]] for record in records] == [[1, 2, 1]] * COUNT


def count_differing_weights(folder: Path, count: int, way: str = "buckets") -> int:
    """How many weights of a whole run differ in a run that is killed and resumed."""
    program = [sys.executable, "-m", "tests.ranks_resumed"]
    calm, broken = folder / "calm", folder / "broken"
    ranks_start.run_ranks([*program, str(calm), "14", "0", way], count)
    codes, outputs = ranks_start.wait_for_ranks([*program, str(broken), "14", "11", way], count)
    assert codes == [-9] * count, "\n".join(outputs)
    outputs = ranks_start.run_ranks([*program, str(broken), "14", "0", way], count)
    assert "resumed from step-8" in outputs[0]
    weights = [[np.load(home / f"{rank}.npy") for rank in range(count)] for home in (calm, broken)]
    assert all(np.array_equal(run_weights[0], one) for run_weights in weights for one in run_weights), (
        "all processes have the same"
    )
    different = int((weights[0][0] != weights[1][0]).sum())
    print(f"{way}, {count} processes: {different} of {len(weights[0][0])} weights differ")
    return different


@pytest.mark.nightly
@pytest.mark.parametrize("count", [3, 4])
def test_killed_and_resumed_gives_the_same_bits(tmp_path: Path, count: int) -> None:
    """Two processes would not show it: a + b is b + a."""
    assert count_differing_weights(tmp_path, count) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("count", [3, 4])
def test_buckets_that_torch_lays_out_again_after_the_first_step_give_others(tmp_path: Path, count: int) -> None:
    """Why DistributedDataParallel is not used as it comes."""
    assert count_differing_weights(tmp_path, count, "ddp") > 0


def test_gradients_on_gpus_travel_in_larger_buckets() -> None:
    """Between GPUs starting a collective costs more than its transfer; `meta` stands for a device that is no CPU."""
    sizes = {}
    for device in ("cpu", "meta"):
        parameters = [torch.nn.Parameter(torch.empty(1 << 20, device=device)) for _ in range(8)]
        sizes[device] = [len(bucket.slots) for bucket in gradient_exchange._cut_into_buckets(parameters)]
    assert sizes == {"cpu": [1] * 8, "meta": [6, 2]}


def test_nccl_makes_no_numa_calls_on_a_single_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker forbids them, and NCCL before 2.26.3 fails there (NVIDIA/nccl#2190)."""
    name = "NCCL_CUMEM_HOST_ENABLE"
    monkeypatch.delenv(name, raising=False)
    alone, two_nodes = (LocalProcesses(2, total=2 * nodes, supervisors=nodes).environment(0) for nodes in (1, 2))
    assert (alone[name], name in two_nodes) == ("0", False)
    monkeypatch.setenv(name, "1")
    assert LocalProcesses(2, total=2).environment(0)[name] == "1"
