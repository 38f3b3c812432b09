"""How often processes wait for each other in an ordinary step, counted at torch's own collectives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from drivetrain.distributed.ranks import Ranks
from drivetrain.errors import PeerError
from tests import ranks_cases

PLAIN, WEIGHTED, NORM = "plain|", "plain|class_weights: balanced", "norm|"
PER_EPOCH = 4
LARGE = 4000
"""Bytes from which on a collective holds gradients."""
Calls = list[list[Any]]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Calls]]]:
    """By process and case: the collectives of each step."""
    folder = tmp_path_factory.mktemp("collectives")
    return ranks_cases.run_cases(folder, [PLAIN, WEIGHTED, NORM], 2, "collectives_driver")


def ordinary(steps: list[Calls]) -> list[Calls]:
    """Those steps that do not follow the start or an evaluation."""
    assert len(steps) == 2 * PER_EPOCH
    return [calls for number, calls in enumerate(steps) if number % PER_EPOCH]


def small(calls: Calls) -> list[str]:
    return [kind for kind, size, phase in calls if phase == "begun" and size < LARGE]


def at_once(calls: Calls) -> list[str]:
    """List the small collectives that are waited for at once."""
    pairs = itertools.pairwise(calls)
    return [kind for (kind, size, phase), after in pairs if phase == "begun" and size < LARGE and after[2] == "waited"]


def test_one_small_collective_a_step(records: list[dict[str, list[Calls]]]) -> None:
    for record in records:
        for calls in ordinary(record[PLAIN]):
            assert small(calls) == at_once(calls) == ["all_gather"]
            assert sum(size >= LARGE and phase == "begun" for _, size, phase in calls) == 1, "the gradients"


def test_class_weights_are_summed_while_the_forward_pass_computes(records: list[dict[str, list[Calls]]]) -> None:
    for calls in ordinary(records[0][WEIGHTED]):
        assert small(calls) == ["all_reduce", "all_gather"]
        # Without a gradient of this step before it, the first wait comes when the forward pass is done.
        assert calls[0] == ["all_reduce", 8, "begun"]


def test_buffers_travel_once_a_step(records: list[dict[str, list[Calls]]]) -> None:
    for calls in ordinary(records[0][NORM]):
        assert small(calls) == ["broadcast", "all_gather"]
        assert at_once(calls) == ["all_gather"], "the buffers travel in the meantime"


@pytest.mark.parametrize("error", ["Connection reset by peer", "[gloo/transport/tcp/pair.cc:547] closed"])
def test_every_error_of_a_collective_is_a_lost_process(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch words it in many ways; only beside the network's own code must the wording decide."""

    def fail(*arguments: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(torch.distributed, "all_gather", fail)
    ranks = Ranks(0, 2)
    with pytest.raises(PeerError):
        ranks.barrier()
    with pytest.raises(PeerError if "gloo" in error else RuntimeError), ranks.raising_peer_errors(runs_network=True):
        fail()
