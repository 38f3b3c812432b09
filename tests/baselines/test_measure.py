"""Simple models on every kind of data have the same metrics as scikit-learn."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.ensemble
import sklearn.linear_model
import sklearn.metrics
import sklearn.pipeline
import sklearn.preprocessing
import torch
from torch import Tensor

from drivetrain.baselines import measure, simple_models
from drivetrain.baselines.baseline_command import BaselineRequest, measure_baselines
from drivetrain.baselines.measure import FittedModel
from drivetrain.baselines.sample_features import TEXT_PENALTY, TextFeatures
from drivetrain.data.dataset import NO_LABEL, Dataset
from drivetrain.data.load_data import add_test, load
from drivetrain.job import Job
from drivetrain.job_spec import load_job
from drivetrain.report.baseline_results import CONSTANT, LINEAR, TREES, Baseline, Skipped
from drivetrain.tasks import find_stored_modality
from drivetrain.training.sparse_rows import SparseRows
from tests import task_cases
from tests.messages import says
from tests.task_cases import CASES, COMMON


def read_case(name: str, folder: Path) -> tuple[Job, Dataset]:
    CASES[name].files(folder)
    (folder / "job.yaml").write_text(f"name: t\n{CASES[name].text}{COMMON}")
    job = load_job.load(folder / "job.yaml")
    return job, load(job)


def fit_baselines(job: Job, data: Dataset, seconds: float = math.inf) -> dict[str, Baseline]:
    return {row.name: row for row in measure.fit_simple_models(job, data, seconds) if isinstance(row, Baseline)}


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_data_has_baselines_with_the_metrics_of_its_network(name: str, tmp_path: Path) -> None:
    job, data = read_case(name, tmp_path)
    rows = fit_baselines(job, data)
    kind = data.preprocessing["kind"]
    assert set(rows) == {CONSTANT, LINEAR} | ({TREES} if kind in ("table", "series", "sounds") else set())
    for row in rows.values():
        assert row.metrics.keys() == rows[CONSTANT].metrics.keys()
        assert job.best() in row.metrics
        assert all(math.isfinite(value) for value in row.metrics.values())
        assert row.rows == row.of == len(data.train)


@pytest.mark.parametrize("name", ["table", "series"])
def test_trees_are_those_of_scikit_learn_on_the_same_rows(name: str, tmp_path: Path) -> None:
    job, data = read_case(name, tmp_path)
    features = find_stored_modality(data.preprocessing).make_features(data)
    assert features is not None
    columns, categories = features.read_trees(data.train, np.arange(len(data.train)))
    assert len(categories) == len(data.preprocessing.get("categorical", ()))
    # The rows of the validation file, in the order in which the classes are numbered.
    model = sklearn.ensemble.HistGradientBoostingClassifier(
        categorical_features=categories or None, random_state=job.train.seed
    )
    order = np.random.default_rng(job.train.seed).permutation(len(data.train))
    model.fit(columns[order], data.train.targets[""].numpy()[order])
    validation_columns, _ = features.read_trees(data.validation, np.arange(len(data.validation)))
    truth = data.validation.targets[""].numpy()
    row = fit_baselines(job, data)[TREES]
    assert row.metrics["validation/accuracy"] == pytest.approx(
        sklearn.metrics.accuracy_score(truth, model.predict(validation_columns))
    )
    loss = sklearn.metrics.log_loss(truth, model.predict_proba(validation_columns), labels=model.classes_)
    assert row.metrics["validation/loss"] == pytest.approx(loss, rel=1e-4)


def test_numbers_are_in_the_units_of_the_data(tmp_path: Path) -> None:
    job, data = read_case("table numbers", tmp_path)
    rows = fit_baselines(job, data)
    price = data.validation.targets[""][:, 0].numpy() * data.heads[""].std[0]
    # The targets are centred on the mean of training, which is what the constant answers.
    assert rows[CONSTANT].metrics["validation/price/mae"] == pytest.approx(np.abs(price).mean(), rel=1e-3)
    assert rows[LINEAR].metrics["validation/price/mae"] < rows[CONSTANT].metrics["validation/price/mae"]


def test_the_constant_answer_is_the_most_frequent_class_of_training(tmp_path: Path) -> None:
    job, data = read_case("image folders", tmp_path)
    row = fit_baselines(job, data)[CONSTANT]
    counts = np.bincount(data.train.targets[""].numpy())
    answer = int(counts.argmax())
    assert row.answers == {"": data.heads[""].classes[answer]}
    share = float((data.validation.targets[""].numpy() == answer).mean())
    assert row.metrics["validation/accuracy"] == pytest.approx(share)


def test_texts_are_weighted_as_by_scikit_learn(tmp_path: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    _, data = read_case("one text head", tmp_path)
    ids = np.arange(len(data.train))
    features = TextFeatures(data)
    counted = features.read_linear(data.train, ids)
    scaling = features.fit_scaling(counted)
    assert scaling is not None
    rows = scaling.scale(counted)
    assert isinstance(rows, SparseRows)
    ours = rows.multiply(torch.eye(rows.width))
    tokens, *_, mask = data.train.gather(ids)
    token_texts = [
        " ".join(str(int(t)) for t, m in zip(row, real, strict=True) if m)
        for row, real in zip(tokens, mask, strict=True)
    ]
    theirs = TfidfVectorizer(token_pattern=r"\S+", ngram_range=(1, 2), sublinear_tf=True, min_df=2).fit_transform(
        token_texts
    )
    # Which column a token or pair has differs; the products of texts do not.
    assert ours.shape == theirs.shape
    np.testing.assert_allclose((ours @ ours.T).numpy(), (theirs @ theirs.T).toarray(), atol=1e-6)


def make_logistic(kind: str) -> Any:
    scaler = [sklearn.preprocessing.StandardScaler()] if kind != "table" else []
    strength = {"images": 0.1, "texts": 1 / TEXT_PENALTY}.get(kind, 1.0)
    return sklearn.pipeline.make_pipeline(*scaler, sklearn.linear_model.LogisticRegression(C=strength, max_iter=5000))


@pytest.mark.parametrize("name", ["table", "series", "image folders"])
def test_the_linear_model_is_that_of_scikit_learn(name: str, tmp_path: Path) -> None:
    job, data = read_case(name, tmp_path)
    features = find_stored_modality(data.preprocessing).make_features(data)
    assert features is not None
    fitted, evaluated = (
        make_dense(features.read_linear(split, np.arange(len(split)))) for split in (data.train, data.validation)
    )
    model = make_logistic(data.preprocessing["kind"]).fit(fitted, data.train.targets[""].numpy())
    truth = data.validation.targets[""].numpy()
    expected = sklearn.metrics.log_loss(truth, model.predict_proba(evaluated), labels=model.classes_)
    assert fit_baselines(job, data)[LINEAR].metrics["validation/log_loss"] == pytest.approx(expected, rel=5e-3)


def make_dense(matrix: Tensor | SparseRows) -> np.ndarray:
    return (matrix if isinstance(matrix, Tensor) else matrix.multiply(torch.eye(matrix.width))).numpy()


def test_more_samples_are_taken_as_long_as_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, data = read_case("table", tmp_path)
    monkeypatch.setattr(measure, "FIRST_ROWS", 5)
    sizes = [
        row.rows
        for row in measure.fit_simple_models(job, data, 1e6, 5, 3)
        if row.name == LINEAR and isinstance(row, Baseline)
    ]
    assert sizes == [5, 15, 45, 60]
    bounded = measure.fit_simple_models(job, data, 1e6, 5, 3, free_memory=1.0)
    assert [row.rows for row in bounded if row.name == LINEAR and isinstance(row, Baseline)] == [5]
    hurried = [
        row.rows
        for row in measure.fit_simple_models(job, data, 0.0, 5, 3)
        if row.name == LINEAR and isinstance(row, Baseline)
    ]
    assert hurried == [5, 5]  # evaluated again, with margins
    assert fit_baselines(job, data)[LINEAR].rows == 60


def test_a_fit_that_would_end_too_late_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver can need more than twice the time for twice the samples: pictures took 35 times as long for twice as many."""
    job, data = read_case("table", tmp_path)
    now = [0.0]

    def fit(*arguments: Any) -> FittedModel:
        *_, name, _, ids = arguments
        seconds = len(ids) ** 2 / 100 if name == TREES else len(ids) / 100
        now[0] += seconds
        return FittedModel(data, (), name, {}, len(ids), seconds)

    monkeypatch.setattr(measure, "_fit", fit)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    rows = [(row.name, row.rows) for row in measure.fit_simple_models(job, data, 19.0, 10, 2) if row.name != CONSTANT]
    pairs = [(LINEAR, 10), (TREES, 10), (LINEAR, 20), (TREES, 20), (LINEAR, 40), (LINEAR, 60)]
    assert rows == pairs
    assert now[0] < 19


def test_without_any_label_the_linear_model_is_the_constant_answer(tmp_path: Path) -> None:
    _, data = read_case("table", tmp_path)
    (head,), features = data.heads.values(), find_stored_modality(data.preprocessing).make_features(data)
    assert features is not None
    ids = np.arange(8, dtype=np.int64)
    predict = simple_models.fit_linear(features, data.train, ids, torch.full((8,), NO_LABEL), head, 0)
    assert predict(data.train, ids).shape == (8, len(head.classes))
    assert torch.isfinite(predict(data.train, ids)).all()


def test_each_picture_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, data = read_case("image folders", tmp_path)
    decoded: list[int] = []
    gather = data.train.gather
    monkeypatch.setattr(data.train, "gather", lambda ids: decoded.extend(ids.tolist()) or gather(ids))
    sizes = [
        row.rows
        for row in measure.fit_simple_models(job, data, 1e6, 3, 2)
        if row.name == LINEAR and isinstance(row, Baseline)
    ]
    assert sizes == [3, 6, 12]
    assert sorted(decoded) == list(range(12))


def test_a_class_that_the_first_samples_lack_is_no_error(tmp_path: Path) -> None:
    job, data = read_case("table", tmp_path)
    fitted = [row for row in measure.fit_simple_models(job, data, 0.0, first_rows=2) if isinstance(row, Baseline)]
    assert {row.rows for row in fitted} == {2, 60}
    assert all(math.isfinite(value) for row in fitted for value in row.metrics.values())


def test_without_scikit_learn_only_trees_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, data = read_case("table", tmp_path)
    monkeypatch.setattr(measure, "find_spec", lambda name: None)
    rows = {row.name: row for row in measure.fit_simple_models(job, data, 60)}
    trees = rows[TREES]
    assert isinstance(rows[LINEAR], Baseline)
    assert isinstance(trees, Skipped)
    assert says(trees.reason, "scikit-learn-not-installed-pip")


def test_a_linear_model_does_not_import_scikit_learn(tmp_path: Path) -> None:
    CASES["one text head"].files(tmp_path)
    (tmp_path / "job.yaml").write_text(f"name: t\n{CASES['one text head'].text}{COMMON}")
    program = (
        "import sys; from pathlib import Path; from drivetrain.baselines.measure import fit_simple_models; "
        "from drivetrain.data.load_data import load; from drivetrain.job_spec import load_job; "
        "job = load_job.load(Path('job.yaml')); assert len(list(fit_simple_models(job, load(job), 60))) >= 2; "
        "print('sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_inputs_that_only_the_users_code_knows_get_the_constant_answer_alone() -> None:
    from tests.paths import ROOT

    job = load_job.load(ROOT / "jobs" / "own-model.yaml")
    rows = list(measure.fit_simple_models(job, load(job), 60))
    assert [(type(row), row.name) for row in rows] == [(Baseline, CONSTANT), (Skipped, LINEAR)]


def test_the_final_test_is_evaluated_too(tmp_path: Path) -> None:

    task_cases.table(tmp_path)
    text = CASES["table"].text.replace("validation: held.csv", "validation: 0.2, test: held.csv")
    (tmp_path / "job.yaml").write_text(f"name: t\n{text}{COMMON}")
    job = load_job.load(tmp_path / "job.yaml")
    data = load(job)
    add_test(job, data)
    for row in fit_baselines(job, data).values():
        assert {name.partition("/")[0] for name in row.metrics} == {"validation", "test"}


@pytest.mark.parametrize(("value", "expected"), [("auto", 60.0), ("full", math.inf)])
def test_the_command_has_a_limit_unless_the_job_says_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, expected: float
) -> None:
    limits: list[float] = []

    def fit_nothing(job: Job, data: Dataset, seconds: float, **options: object) -> list[Baseline]:
        limits.append(seconds)
        return [Baseline(CONSTANT, {}, 1, 1, 0.1)]

    monkeypatch.setattr(measure, "fit_simple_models", fit_nothing)
    (tmp_path / "a.csv").write_text("x,y\n" + "1,a\n2,b\n" * 20)
    text = "name: a\ntask: tabular-classification\ndata: {train: a.csv, target: y}\n"
    (tmp_path / "job.yaml").write_text(f"{text}baselines: {value}\n")
    assert measure_baselines(BaselineRequest(tmp_path / "job.yaml")) == 0
    assert limits == [expected]


def test_the_command_names_the_metric_that_the_data_let_a_run_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With uneven classes the loss chooses, and it said f1."""
    rows = [f"{number % 7},{'yes' if number % 5 == 0 else 'no'}" for number in range(120)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    (tmp_path / "job.yaml").write_text("name: a\ntask: tabular-classification\ndata: {train: a.csv, target: y}\n")
    assert measure_baselines(BaselineRequest(tmp_path / "job.yaml")) == 0
    assert "validation/loss (checkpoint.best) chooses the weights" in capsys.readouterr().out


@pytest.mark.parametrize("threads", [1, None])
def test_few_samples_are_fitted_by_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int | None
) -> None:
    """Boosted trees took 52 s for 960 rows on two busy CPUs, because two threads waited for each other."""
    thread_limits: list[int | None] = []

    @contextlib.contextmanager
    def record(limits: int | None) -> Iterator[None]:
        thread_limits.append(limits)
        yield

    torch_threads: set[int] = set()
    fit_linear = simple_models.fit_linear

    def fit(*arguments: Any) -> Any:
        torch_threads.add(torch.get_num_threads())
        return fit_linear(*arguments)

    monkeypatch.setattr(simple_models, "fit_linear", fit)
    monkeypatch.setattr(measure, "threadpool_limits", record)
    monkeypatch.setattr(measure, "ONE_THREAD_ROWS", 100 if threads else 40)
    table = [f"{number % 7},{'yes' if number % 3 == 0 else 'no'}" for number in range(100)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *table]) + "\n")
    (tmp_path / "job.yaml").write_text("name: a\ntask: tabular-classification\ndata: {train: a.csv, target: y}\n")
    job = load_job.load(tmp_path / "job.yaml")
    assert list(measure.fit_simple_models(job, load(job), 60))
    assert set(thread_limits) == {threads}
    assert torch_threads == {threads or torch.get_num_threads()}
