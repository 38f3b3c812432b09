"""Advice about the model, on fabricated runs: too long, too short, a weak class; none where all is well."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy.stats import binomtest

from drivetrain.report import __main__ as report_command
from drivetrain.report.confusion import compute_interval
from drivetrain.report.machine_advice import Advice
from drivetrain.report.model_advice import list_advice, list_model_advice
from drivetrain.report.record import read, summarize
from drivetrain.report.write import write
from tests.messages import get_message, says, says_only
from tests.report_folder import change_json, make_run, write_rows

EPOCHS = 12


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of twelve epochs whose model needs nothing."""
    run = make_run(tmp_path / "digits-001")
    matrix = [[290 if truth == guess else 1 for guess in range(10)] for truth in range(10)]
    change_json(run / "result.json", lambda r: r["confusion"][""].update(matrix=matrix))
    return run


def evaluate(run: Path, losses: Sequence[float], accuracies: Sequence[float] | None = None) -> None:
    values = zip(losses, accuracies or [0.97] * len(losses), strict=True)
    write_rows(
        run / "metrics.jsonl",
        [
            {"step": 45 * (epoch + 1), "epoch": epoch, "validation/loss": loss, "validation/accuracy": accuracy}
            for epoch, (loss, accuracy) in enumerate(values)
        ],
    )


def advise(run: Path) -> list[Advice]:
    record = read(run)
    return list_model_advice(record, summarize(record))


def test_a_model_that_needs_nothing(run: Path) -> None:
    assert advise(run) == []
    evaluate(run, [0.5, 0.3, 0.2, 0.15, 0.13, 0.12, 0.11, 0.1, 0.095, 0.09, 0.085, 0.08])
    assert advise(run) == []


def test_overfitting_names_the_epoch_and_the_line(run: Path) -> None:
    evaluate(run, [0.5, 0.3, 0.2, 0.15, 0.16, 0.18, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3])
    (one,) = advise(run)
    assert one.line == "train: {epochs: 8}"
    assert "lowest after epoch 4 of 12 and is 100 % higher" in one.why
    assert says(one.why, "chose-weights-gained-chance", "validation/accuracy")


def test_overfitting_of_the_loss_alone_is_no_reason_to_lose_accuracy(run: Path) -> None:
    """The advice took 50 epochs to 13, where f1 was lower, and advised again."""
    losses = [0.5, 0.3, 0.2, 0.15, 0.16, 0.18, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3]
    evaluate(run, losses, [0.5, 0.6, 0.7, 0.75, 0.75, 0.75, 0.8, 0.85, 0.9, 0.91, 0.95, 0.97])
    assert not any(one.change == get_message("train-fewer-epochs") for one in advise(run))


def test_a_batch_of_most_samples_is_named(run: Path) -> None:
    (run / "job.yaml").write_text((run / "job.yaml").read_text().replace("batch_size: 32", "batch_size: 5000"))
    change_json(run / "result.json", lambda result: result.update(steps=12, epochs=12))
    assert advise(run)[0].line == "train: {batch_size: 32}"


def test_a_loss_that_is_lowest_late_or_rises_little_is_no_overfitting(run: Path) -> None:
    evaluate(run, [0.5, 0.3, 0.2, 0.15, 0.151, 0.152, 0.153, 0.154, 0.155, 0.156, 0.157, 0.158])
    assert advise(run) == []
    evaluate(run, [0.5, 0.3, 0.2, 0.03, 0.03, 0.04, 0.04, 0.04, 0.045, 0.045, 0.045, 0.045])
    assert advise(run) == []
    evaluate(run, [1.2 - epoch / 10 for epoch in range(10)] + [0.4, 0.5])
    assert advise(run) == []


def test_still_improving_by_more_than_chance(run: Path) -> None:
    losses = [0.5] * EPOCHS
    evaluate(run, losses, [0.3 + 0.05 * epoch for epoch in range(EPOCHS)])
    (one,) = advise(run)
    assert one.line == "train: {epochs: 24}"
    evaluate(run, losses, [0.9 + 0.001 * epoch for epoch in range(EPOCHS)])
    assert advise(run) == []


@pytest.mark.parametrize("losses", [[2.4, 2.39, 2.38, 2.37], [2.4, 400.0, 3.0, 2.35]])
def test_a_network_that_learned_nothing_needs_another_rate(run: Path, losses: list[float]) -> None:
    write_rows(run / "metrics.jsonl", [{"step": n, "train/loss": loss} for n, loss in enumerate(losses, 1)])
    assert advise(run)[0].line.split()[1:3] == ["bench", "lr"]


@pytest.mark.parametrize(
    ("fit", "share", "accuracy", "expected"),
    [("crop", 0.9, 0.7, True), ("pad", 0.9, 0.7, False), ("crop", 0.2, 0.7, False), ("crop", 0.9, 0.99, False)],
)
def test_cropped_pictures_are_shown_whole(run: Path, fit: str, share: float, accuracy: float, expected: bool) -> None:
    def spoil(result: dict) -> None:  # type: ignore[type-arg]
        result["facts"] = {"oblong": {"share": share, "fit": fit}}
        result["best"]["metrics"] = {"validation/accuracy": accuracy}

    change_json(run / "result.json", spoil)
    assert any(one.line == "data: {fit: pad}" for one in advise(run)) == expected


def test_a_loss_that_still_falls_a_lot_asks_for_more_epochs(run: Path) -> None:
    """Two epochs of the digits: the accuracy gained 0.017, no more than a fiftieth; the loss fell by two fifths."""
    evaluate(run, [1.03, 0.64], [0.933, 0.95])
    assert says_only([one.change for one in advise(run)], "train-for-more-epochs")
    evaluate(run, [1.03, 0.9], [0.933, 0.95])
    assert not any(one.change == get_message("train-for-more-epochs") for one in advise(run))


@pytest.mark.parametrize(("samples", "is_advised"), [(4, False), (12, True)])
def test_a_class_of_a_few_samples_is_weak_by_chance(run: Path, samples: int, is_advised: bool) -> None:
    """Of 24 digits for validation two were nines, one of which was missed: more nines were the first advice."""

    def spoil(result: dict) -> None:  # type: ignore[type-arg]
        row = result["confusion"][""]["matrix"][7]
        row[:] = [0] * 10
        row[1], row[7] = samples - 1, 1

    change_json(run / "result.json", spoil)
    assert any("F1" in one.why for one in advise(run)) == is_advised


@pytest.mark.parametrize(("samples", "line"), [(30, "train: {class_weights: balanced}"), (290, "more samples of 7")])
def test_a_class_that_is_much_weaker_than_the_others(run: Path, samples: int, line: str) -> None:
    def spoil(result: dict) -> None:  # type: ignore[type-arg]
        matrix = result["confusion"][""]["matrix"]
        matrix[7] = [samples // 20] * 10
        matrix[7][7] = samples - 9 * (samples // 20)
        matrix[7][1], matrix[7][7] = matrix[7][7], matrix[7][1]

    change_json(run / "result.json", spoil)
    (one,) = advise(run)
    assert one.line == line
    assert one.why.startswith("7 has F1 0.")


@pytest.mark.parametrize(("hits", "total"), [(0, 5), (73, 90), (90, 90), (1, 1000)])
def test_the_interval_is_that_of_scipy(hits: int, total: int) -> None:
    expected = binomtest(hits, total).proportion_ci(method="wilson")
    assert compute_interval(hits, total) == pytest.approx((expected.low, expected.high), abs=1e-4)
    assert compute_interval(0, 0) == (0.0, 1.0)


def test_it_comes_first_in_the_report_and_on_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(run, [0.5, 0.3, 0.2, 0.15, 0.16, 0.18, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3])
    assert report_command.main([str(run)]) == 0
    assert says(capsys.readouterr().out, "advice-train-fewer-epochs")
    assert says_only(json.loads((run / "report.json").read_text())["advice"][0]["change"], "train-fewer-epochs")
    record = read(run)
    assert says_only(list_advice(record, summarize(record))[0].change, "train-fewer-epochs")


@pytest.mark.parametrize(("samples", "are_few"), [(90, True), (5000, False)])
def test_it_names_the_samples_that_it_rests_on(run: Path, samples: int, are_few: bool) -> None:
    change_json(run / "result.json", lambda result: result.update(baselines={"validation_samples": samples}))
    assert "rests on" not in write_report(run), "there is no advice about the model"
    evaluate(run, [0.5, 0.3, 0.2, 0.15, 0.16, 0.18, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3])
    text = write_report(run)
    assert says(text, "advice-model-rests", f"{samples:,}")
    assert ("which are few" in text) == are_few


def write_report(run: Path) -> str:
    write(run)
    return (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("values", "expected"), [([0.5, 0.8], True), ([0.8, 0.801], False), ([0.9, 0.8], False)])
def test_a_run_of_two_epochs_that_still_improves_gets_more(run: Path, values: list[float], expected: bool) -> None:
    evaluate(run, [0.5] * len(values), values)
    assert any(one.change == get_message("train-for-more-epochs") for one in advise(run)) == expected
