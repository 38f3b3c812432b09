"""What the simple models say about a network: better, worse, as good, or nothing learned."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from drivetrain.report.baseline_results import (
    CONSTANT,
    LINEAR,
    TREES,
    Baseline,
    Comparison,
    Skipped,
    compare_network,
    from_json,
    to_json,
)
from drivetrain.report.blocks import Table
from drivetrain.report.comparison import ComparedRun, list_sections
from drivetrain.report.record import Record, summarize
from tests.messages import begins_with, ends_with, omits, says


def row(
    name: str, value: float, metric: str = "validation/accuracy", rows: int = 900, margin: float | None = 0.004
) -> Baseline:
    answers = {"": "on time"} if name == CONSTANT else {}
    return Baseline(name, {metric: value}, rows, 900, 2.34, answers, {} if margin is None else {metric: margin})


def comparison(network: float, *rows: Baseline, metric: str = "validation/accuracy", samples: int = 6000) -> Comparison:
    return Comparison(metric, network, rows, samples)


def test_the_best_comes_first_and_says_what_it_took() -> None:
    three = comparison(0.775, row(CONSTANT, 0.759), row(LINEAR, 0.769, rows=100), row(TREES, 0.792))
    assert three.format_line() == (
        'network 0.7750 · boosted trees 0.7920 (2.3 s) · linear model 0.7690 (2.3 s, 100 of 900 samples) · always "on time" 0.7590'
    )
    assert three.compute_lead() == pytest.approx(-0.017)
    assert begins_with(three.describe_verdict(), "boosted-trees-better-use", "0.0170")


def test_a_simple_model_of_few_samples_is_called_so() -> None:
    verdict = comparison(0.9, row(CONSTANT, 0.5), row(LINEAR, 0.7, rows=100)).describe_verdict()
    assert says(verdict, "linear-fitted-to-samples", 100, 900)
    assert "samples" not in comparison(0.9, row(LINEAR, 0.7)).describe_verdict()


@pytest.mark.parametrize("network", [0.9, 0.792, 0.7])
def test_no_advice_comes_from_a_random_split_of_rows_in_the_order_of_time(network: float) -> None:
    content = to_json([row(TREES, 0.792), row(CONSTANT, 0.6)], samples=6000, seconds=1.0, time_order="day")
    shuffled = compare_network(content, "validation/accuracy", {"validation/accuracy": network})
    assert shuffled
    assert says(shuffled.describe_verdict(), "order-divided-random", "day")
    assert "scikit-learn" not in shuffled.describe_verdict()
    tested = to_json([row(TREES, 0.792, "test/accuracy")], samples=6000, seconds=1.0, test_samples=50, time_order="day")
    by_time = compare_network(tested, "validation/accuracy", {"validation/accuracy": 0.9, "test/accuracy": network})
    assert by_time
    assert "random" not in by_time.describe_verdict()


def test_lower_losses_and_errors_are_better() -> None:
    error = "validation/rmse"
    two = comparison(2.0, row(CONSTANT, 9.0, error), row(TREES, 3.0, error), metric=error)
    assert [baseline.name for baseline in two.sort_rows()] == [TREES, CONSTANT]
    assert two.compute_lead() == 1.0
    assert says(two.describe_verdict(), "network-is-better")
    close = comparison(22514.9, row(TREES, 22660.9, error, margin=206.0), metric=error)
    assert says(close.describe_verdict(), "good-within-validation-samples", "6,000")


def test_a_difference_that_the_samples_cannot_tell_is_none() -> None:
    for network in (0.73, 0.75):
        close = comparison(network, row(LINEAR, 0.74, margin=0.02), samples=90)
        assert says(close.describe_verdict(), "good-within-validation-samples-tell", 90)
        clear = comparison(network, row(LINEAR, 0.74, margin=0.005), samples=90)
        assert "is better" in clear.describe_verdict()
        assert "0.0100 +-0.0050" in clear.describe_verdict()
    same = comparison(0.74, row(LINEAR, 0.74, margin=None))
    assert says(same.describe_verdict(), "good-both-have-same")


@pytest.mark.parametrize("network", [0.74, 0.76])
def test_a_difference_of_unknown_chance_is_not_called_better(network: float) -> None:
    verdict = comparison(network, row(LINEAR, 0.75, margin=None), samples=15).describe_verdict()
    assert says(verdict, "chance-validation-samples-tell", 15)
    assert "is better" not in verdict
    unknown = replace(comparison(network, row(LINEAR, 0.75, margin=None)), samples=None)
    assert says(unknown.describe_verdict(), "chance-unknown-samples")


def test_a_lead_over_a_constant_answer_that_may_be_chance_is_not_called_nothing() -> None:
    verdict = comparison(0.84, row(CONSTANT, 0.64, margin=0.25), samples=25).describe_verdict()
    assert says(verdict, "good-within-validation-samples-tell", 25)
    assert omits(verdict, "network-learned-nothing")


def test_a_network_that_learned_nothing_is_told_so() -> None:
    assert says(comparison(0.758, row(CONSTANT, 0.759), row(LINEAR, 0.7)).describe_verdict(), "network-learned-nothing")
    assert omits(comparison(0.9, row(CONSTANT, 0.759)).describe_verdict(), "network-learned-nothing")


def test_a_constant_answer_alone_is_no_comparison() -> None:
    """The verdict changed with the time that the linear model took."""
    data = to_json([row(CONSTANT, 0.33)], samples=90, seconds=15)
    timed_out = compare_network(data, "validation/accuracy", {"validation/accuracy": 0.9})
    assert timed_out is not None
    assert ends_with(timed_out.describe_verdict(), "simple-model-fitted-time")
    data = to_json([row(CONSTANT, 0.33), Skipped(LINEAR, "own code")], samples=90, seconds=15)
    unsupported = compare_network(data, "validation/accuracy", {"validation/accuracy": 0.9})
    assert unsupported is not None
    assert ends_with(unsupported.describe_verdict(), "simple-model-fitted-own")


def test_without_this_metric_there_is_no_verdict() -> None:
    other = comparison(0.5, row(LINEAR, 0.7, "validation/f1"))
    assert other.compute_lead() is None
    assert other.describe_verdict() == ""


def test_what_is_written_is_read_and_the_last_of_a_name_counts() -> None:
    outcomes: list[Baseline | Skipped] = [
        row(CONSTANT, 0.5),
        row(LINEAR, 0.6, rows=4),
        row(LINEAR, 0.7),
        Skipped(TREES, "too long"),
    ]
    data = json.loads(json.dumps(to_json(outcomes, samples=12, seconds=15)))
    rows, skipped = from_json(data)
    assert [baseline.metrics["validation/accuracy"] for baseline in rows] == [0.5, 0.7]
    assert skipped == (Skipped(TREES, "too long"),)
    network_comparison = compare_network(data, "validation/accuracy", {"validation/accuracy": 0.8})
    assert network_comparison is not None
    assert network_comparison.samples == 12
    assert compare_network({}, "validation/accuracy", {"validation/accuracy": 0.8}) is None


def test_the_final_test_judges_where_there_was_one() -> None:
    """The validation samples have chosen the network's weights, and not those of the simple models."""
    rows = [
        Baseline(
            LINEAR,
            {"validation/accuracy": 0.96, "test/accuracy": 0.97},
            *(900, 900, 1.0),
            margins={"validation/accuracy": 0.5, "test/accuracy": 0.001},
        ),
        Baseline(TREES, {"validation/accuracy": 0.95, "test/accuracy": 0.94}, 900, 900, 1.0),
    ]
    network = {"validation/accuracy": 0.99, "validation/loss": 0.1, "test/accuracy": 0.93}
    data = to_json(rows, samples=400, seconds=15, test_samples=10_000)
    tested = compare_network(data, "validation/loss", network)
    assert tested is not None
    assert (tested.metric, tested.network, tested.samples) == ("test/accuracy", 0.93, 10_000)
    assert tested.compute_lead() == pytest.approx(-0.04)
    close = compare_network(data, "validation/loss", network | {"test/accuracy": 0.9699})
    assert close is not None
    assert says(close.describe_verdict(), "good-within-test-samples-tell", "10,000")
    # Without its number of samples, as in runs of earlier versions, or of the network, it cannot be judged.
    for known in (data | {"test_samples": None}, {name: data[name] for name in data if name != "test_samples"}):
        earlier = compare_network(known, "validation/loss", network)
        assert earlier is not None
        assert (earlier.metric, earlier.samples) == ("validation/accuracy", 400)
    untested = compare_network(data, "validation/loss", {"validation/accuracy": 0.99, "validation/loss": 0.1})
    assert untested is not None
    assert untested.metric == "validation/accuracy"


@pytest.mark.parametrize(
    "damage",
    [
        {"name": None},
        {"name": 5},
        {"rows": None},
        {"rows": "many"},
        {"seconds": None},
        {"metrics": []},
        {"metrics": None},
    ],
    ids=str,
)
def test_a_damaged_row_is_left_out(damage: dict[str, object]) -> None:
    data: dict[str, Any] = to_json([row(CONSTANT, 0.5), row(LINEAR, 0.6)], samples=12, seconds=15)
    data["baselines"][1] |= damage
    assert [baseline.name for baseline in from_json(data)[0]] == [CONSTANT]


def test_compared_runs_show_the_best_simple_model_of_each() -> None:
    def compared(name: str, baselines: dict[str, object]) -> ComparedRun:
        best = {"metric": "validation/accuracy", "value": 0.9}
        record = Record(name, result={"best": best, "baselines": baselines})
        return ComparedRun(name, record, summarize(record))

    written = to_json([row(CONSTANT, 0.5), row(LINEAR, 0.7)], samples=12, seconds=15)
    table = list_sections([compared("one", written), compared("two", {})])[0].blocks[0]
    assert isinstance(table, Table)
    assert ("best simple model", "0.7 (linear model)", "-") in table.rows
    without = list_sections([compared("one", {}), compared("two", {})])[0].blocks[0]
    assert isinstance(without, Table)
    assert "best simple model" not in {cells[0] for cells in without.rows}


@pytest.mark.parametrize(("network", "is_named"), [("encoder", True), ("linear", False)])
@pytest.mark.parametrize("accuracy", [0.6, 0.8])
def test_a_linear_network_is_not_advised_to_be_one(network: str, is_named: bool, accuracy: float) -> None:
    data = to_json([row(LINEAR, 0.8)], samples=1_000, seconds=15)
    comparison = compare_network(data, "validation/accuracy", {"validation/accuracy": accuracy}, network)
    assert comparison is not None
    assert ("`model: linear`" in comparison.describe_verdict()) == is_named


def test_a_linear_network_is_as_good_as_itself() -> None:
    data = to_json([row(LINEAR, 0.8)], samples=1_000, seconds=15)
    comparison = compare_network(data, "validation/accuracy", {"validation/accuracy": 0.8}, "linear")
    assert comparison is not None
    assert "model itself" in comparison.describe_verdict()


def test_a_loss_that_chose_the_weights_is_compared_by_accuracy() -> None:
    row = Baseline(LINEAR, {"validation/loss": 0.5, "validation/accuracy": 0.7}, 9, 9, 1.0)
    data = to_json([row], samples=1_000, seconds=15.0)
    metrics = {"validation/loss": 0.4, "validation/accuracy": 0.8}
    comparison = compare_network(data, "validation/loss", metrics)
    assert comparison is not None
    assert (comparison.metric, comparison.network) == ("validation/accuracy", 0.8)
    of_numbers = compare_network(data, "validation/loss", {"validation/loss": 0.4})
    assert of_numbers is not None
    assert of_numbers.metric == "validation/loss"


def test_a_better_sum_of_losses_names_the_heads_that_are_worse() -> None:
    """The network was called better by its loss while it was right half as often at one of three heads."""
    metrics = {"validation/loss": 0.43, "validation/mode/accuracy": 0.89, "validation/cause/accuracy": 0.87}
    linear = Baseline(LINEAR, metrics, 900, 900, 1.0, margins=dict.fromkeys(metrics, 0.05))
    data = to_json([linear], samples=900, seconds=15)
    network = {"validation/loss": 0.28, "validation/mode/loss": 0.9, "validation/cause/loss": 0.2}
    network |= {"validation/mode/accuracy": 0.46, "validation/cause/accuracy": 0.84}
    comparison = compare_network(data, "validation/loss", network)
    assert comparison is not None
    verdict = comparison.describe_verdict()
    assert verdict.endswith("; but validation/mode/accuracy: linear model 0.8900, network 0.4600")
    assert "cause" not in verdict
    worse = compare_network(data, "validation/loss", network | {"validation/loss": 0.6})
    assert worse is not None
    assert "/mode/" not in worse.describe_verdict()
