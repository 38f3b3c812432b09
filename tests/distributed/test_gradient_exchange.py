"""Several processes sum gradients like one loop, also for unused layers, and with the same bits after a resume."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drivetrain.distributed import gradient_exchange
from drivetrain.distributed.local_processes import LocalProcesses
from tests import ranks_start
from tests.exchange_cases import KINDS
from tests.messages import says

States = dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(2, marks=pytest.mark.nightly),
        3,
        pytest.param(4, marks=pytest.mark.nightly),
    ],
)
def exchange_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of so many processes: after 20 steps, and of a network that they refuse."""
    folder = tmp_path_factory.mktemp("exchange")
    ranks_start.run_ranks([sys.executable, "-m", "tests.exchange_cases", str(folder)], int(request.param))
    return folder


@pytest.fixture(scope="module")
def states_by_rank(exchange_folder: Path) -> list[States]:
    """Return the state after 20 steps by process and kind of network, and the state of a plain loop."""
    files = sorted(exchange_folder.glob("*.pt"))
    return [torch.load(file, weights_only=True) for file in files]


def test_no_folder_for_compiled_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder stands for it, and its handle can be stale."""
    make_folders = os.makedirs

    def fail(path: str, *arguments: Any, **options: Any) -> None:
        if path == os.curdir:
            raise OSError(errno.ESTALE, "Stale file handle")
        make_folders(path, *arguments, **options)

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(os, "makedirs", fail)
    monkeypatch.setattr(gradient_exchange, "DistributedDataParallel", Mock())
    ranks = Mock(world_size=2, raising_peer_errors=contextlib.nullcontext)
    assert gradient_exchange.GradientExchange(ranks).wrap_if_changed(nn.Linear(2, 1))


def test_a_loss_without_gradient_is_not_trained_in_silence() -> None:
    network = nn.Linear(2, 1)
    module = gradient_exchange._LossModule(network, list(network.parameters()))
    with pytest.raises(RuntimeError, match="does not require grad"):
        module(lambda: torch.zeros(())).backward()


@pytest.mark.parametrize("kind", KINDS)
def test_processes_train_as_a_loop_that_adds_all_gradients_up(states_by_rank: list[States], kind: str) -> None:
    (first, by_hand), *others = (states[kind] for states in states_by_rank)
    for name, value in by_hand.items():
        np.testing.assert_allclose(first[name], value, rtol=1e-6, atol=1e-9, err_msg=f"{kind} {name}")
        assert all(torch.equal(first[name], other[name]) for other, _ in others), "all processes have the same"


def test_checkpoints_that_report_a_gradient_twice_are_refused(exchange_folder: Path) -> None:
    for file in exchange_folder.glob("*.txt"):
        assert says(file.read_text(), "reentrant-several-processes")


def count_differing_weights(folder: Path, count: int, way: str = "kept") -> int:
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
    """Why the first backward pass is a rehearsal."""
    assert count_differing_weights(tmp_path, count, "rebuilt") > 0


def test_nccl_makes_no_numa_calls_on_a_single_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker forbids them, and NCCL before 2.26.3 fails there (NVIDIA/nccl#2190)."""
    name = "NCCL_CUMEM_HOST_ENABLE"
    monkeypatch.delenv(name, raising=False)
    alone, two_nodes = (LocalProcesses(2, total=2 * nodes, supervisors=nodes).environment(0) for nodes in (1, 2))
    assert (alone[name], name in two_nodes) == ("0", False)
    monkeypatch.setenv(name, "1")
    assert LocalProcesses(2, total=2).environment(0)[name] == "1"
