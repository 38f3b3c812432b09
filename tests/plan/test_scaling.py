"""What several machines cost and gain: the model against what was measured, and its limits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from drivetrain.plan.scaling import (
    FABRIC_LATENCY_SECONDS,
    GOOD_EFFICIENCY,
    TCP_LATENCY_SECONDS,
    OneMachine,
    Scaling,
    lines,
)
from drivetrain.system.units import format_rate, parse_rate

HALF_GBIT, FAST = 500e6, 20e9
MEASURED = [
    (0.170, HALF_GBIT, False, 0.519),
    (0.170, HALF_GBIT, True, 0.305),
    (0.331, HALF_GBIT, False, 0.594),
    (0.331, HALF_GBIT, True, 0.421),
    (0.167, FAST, False, 0.217),
]
"""docs/measurements/exchange-2026-11-23.md: step of each process without exchange, link, bf16, step with it."""


def two(computing: float, *, halved: bool = False, nodes: int = 2, gradients: int = 25_000_000) -> Scaling:
    """Machines of which each computes so long in a step."""
    return Scaling(OneMachine("run-001", 768, nodes * computing, 0.0, gradients), nodes, 1, halved)


@pytest.mark.parametrize(("computing", "link", "halved", "measured"), MEASURED)
def test_the_model_is_near_what_was_measured(computing: float, link: float, halved: bool, measured: float) -> None:
    assert two(computing, halved=halved).step(link) == pytest.approx(measured, rel=0.12)


def test_two_nodes_send_the_gradients_once_and_many_nearly_twice() -> None:
    assert two(1.0).sent == 25e6
    assert two(1.0, nodes=100).sent == pytest.approx(2 * 25e6, rel=0.011)
    assert two(1.0, halved=True).sent == 12.5e6
    assert two(1.0, nodes=1).sent == 0


@pytest.mark.parametrize("nodes", [2, 8, 64])
@pytest.mark.parametrize("halved", [False, True])
def test_the_needed_link_gives_the_efficiency(nodes: int, halved: bool) -> None:
    made = two(2.0, nodes=nodes, halved=halved)
    needed = made.needed_link()
    assert needed is not None
    assert made.efficiency(needed) == pytest.approx(GOOD_EFFICIENCY)
    assert made.efficiency(needed / 2) < GOOD_EFFICIENCY < made.efficiency(needed * 2)


def test_no_link_helps_where_each_share_is_too_small() -> None:
    assert two(0.1).needed_link() is None, "summing takes half of that"
    slow = Scaling(OneMachine("run-001", 64, 1.0, 0.5, 1000), 8, 1)
    assert slow.needed_link() is None, "every process updates all weights"
    assert "none gives 90% of 8 times the speed" in "\n".join(lines(slow, None))


def test_the_words_say_if_it_pays() -> None:
    said = "\n".join(lines(two(0.170), HALF_GBIT))
    assert "2, with 1 process on each; 384 of 768 samples of a batch for each process" in said
    assert "25.0 MB a step in fp32; each node sends and receives 25.0 MB a step" in said
    assert "340 ms a step in one process (run-001)" in said
    assert "it does not pay" in said
    assert "it does not pay" not in "\n".join(lines(two(2.0), FAST))
    uneven = Scaling(OneMachine("run-001", 32, 1.0, 0.0, 1000), 3, 1)
    assert "10 or 11 of 32 samples" in "\n".join(lines(uneven, None))


def test_latency_grows_with_the_processes_and_buckets() -> None:
    """On a link without end only messages and what sums cost."""
    made = [two(10.0, nodes=n, gradients=40_000_000) for n in (2, 3, 9)]
    ring = [2 * (n - 1) * TCP_LATENCY_SECONDS + (n - 1) * TCP_LATENCY_SECONDS for n in (2, 3, 9)]
    summing = [one.summing for one in made]
    assert [one.waiting(1e15) for one in made] == pytest.approx(
        [
            max(last, work + few)
            for last, work, few in zip(ring, summing, (n * TCP_LATENCY_SECONDS for n in (1, 2, 8)), strict=True)
        ]
    )
    gpus = [replace(one, on_cpu=False) for one in made]
    assert [one.waiting(1e15) for one in gpus] == pytest.approx(
        [2 * rounds * FABRIC_LATENCY_SECONDS + few * TCP_LATENCY_SECONDS for rounds, few in ((1, 1), (2, 2), (4, 8))],
        rel=5e-3,
    )


def test_gpus_of_one_node_do_not_need_the_link() -> None:
    node = Scaling(OneMachine("", 64, 8.0, 0.0, 400_000_000), 1, 8, on_cpu=False)
    assert node.step(1e6) == node.step(1e12)
    assert 1.0 < node.step(1e9) < 1.01


@pytest.mark.parametrize("is_divided", [False, True])
def test_more_gpus_and_slower_links_never_make_a_step_shorter(is_divided: bool) -> None:
    """With the same samples for each GPU, eight GPUs a node."""
    nodes = [(1, 1), (1, 8), (2, 8), (8, 8), (64, 8)]
    steps = []
    for machines, per_node in nodes:
        gpus = machines * per_node
        one = OneMachine("", 32 * gpus, 0.064 * gpus, 0.0, 440_000_000, 1_760_000_000)
        made = Scaling(one, machines, per_node, on_cpu=False, sharded=is_divided)
        steps.append([made.step(link) for link in (1e10, 1e11, 4e11)])
    for row, after in itertools.pairwise(steps):
        assert row == sorted(row, reverse=True)
        assert all(longer >= shorter for shorter, longer in zip(row, after, strict=True))
    assert steps[0] == pytest.approx([0.064] * 3)


def test_divided_weights_travel_three_times_and_are_held_in_parts() -> None:
    whole = Scaling(OneMachine("", 64, 8.0, 1.0, 4_000_000, 16_000_000), 2, 2, on_cpu=False)
    parts = replace(whole, sharded=True)
    assert parts.sent == 1.5 * whole.sent == 3 * 3 / 4 * 4_000_000
    assert (whole.held, parts.held) == (16_000_000, 4_000_000)
    assert (whole.updating, parts.updating) == (1.0, 0.25)
    needed = parts.needed_link()
    assert needed is not None
    assert parts.efficiency(needed) == pytest.approx(GOOD_EFFICIENCY)


def test_the_words_say_what_does_not_fit_one_gpu() -> None:
    one = OneMachine("run-001", 64, 8.0, 0.0, 4_000_000_000, 16_000_000_000)
    fits = "\n".join(lines(Scaling(one, 2, 4, on_cpu=False), None, 24 * 10**9))
    assert "memory    16.00 GB of weights, gradients and optimizer state in each process" in fits
    large = "\n".join(lines(Scaling(one, 2, 4, on_cpu=False, sharded=True), None, 10**10))
    assert "which does not fit one GPU of 10.00 GB: sharding; each of 8 processes holds 2.00 GB" in large
    still = "\n".join(lines(Scaling(one, 2, 4, on_cpu=False, sharded=True), None, 10**9))
    assert "holds 2.00 GB, and still too much for one: take 17" in still


@pytest.mark.parametrize(
    ("text", "rate"), [("500mbit", 5e8), ("10gbit", 1e10), ("2.5 Gbit/s", 2.5e9), ("800kbit", 8e5)]
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "500", "0mbit", "10 MB", "-1gbit", "1e9", "nan gbit"])
def test_other_texts_are_no_rates(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate(text)


def test_rates_are_readable() -> None:
    assert [format_rate(x) for x in (5e8, 1e10, 3.456e9, 8e5)] == [
        "500 Mbit/s",
        "10 Gbit/s",
        "3.46 Gbit/s",
        "800 kbit/s",
    ]
