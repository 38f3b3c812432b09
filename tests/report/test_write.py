"""The report of a run: what is in it, what it says about each kind of ending, and how it is called."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from operator import methodcaller
from pathlib import Path

import pytest

from drivetrain.report.__main__ import main
from drivetrain.report.write import write
from drivetrain.training.forecast import compare_forecast
from tests.messages import says
from tests.paths import PACKAGE, ROOT
from tests.report_folder import BEST_METRICS, change_json, confusion, make_run, telemetry, write_rows
from tests.report_page import read_page


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("runs") / "digits-001")
    write(run)
    return run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to damage."""
    return Path(shutil.copytree(finished_run, tmp_path / "digits-001", ignore=shutil.ignore_patterns("report.*")))


def text_of(run: Path) -> str:
    write(run)
    return (run / "report.md").read_text(encoding="utf-8")


def test_the_forecast_stands_beside_what_came(run: Path) -> None:
    forecast = compare_forecast({"seconds": 36.0, "low": 30.0, "high": 50.0, "steps": 24}, {"seconds": 41.6})
    assert forecast["error_percent"] == -13.5
    change_json(run / "result.json", lambda result: result.update(forecast=forecast))
    assert says(text_of(run), "forecast-training-which-took", "24", "36.0 s", "30.0 s", "50.0 s", "41.6 s", "-13.5")
    assert json.loads((run / "report.json").read_text())["forecast"]["error_percent"] == -13.5
    for broken in ({"seconds": "1", "error_percent": 1.0}, {"error_percent": 2.0}, [], {"seconds": None, "end": 3}):
        change_json(run / "result.json", methodcaller("update", forecast=broken))
        assert "were forecast" not in text_of(run)


def test_a_final_test_is_shown_with_its_data(run: Path) -> None:
    assert "Final test:" not in text_of(run)
    test = {"samples": 300, "data": "held.csv", "metrics": {"test/accuracy": 0.91}}
    change_json(run / "result.json", methodcaller("update", test=test))
    text = text_of(run)
    assert "Final test: 300 samples of held.csv" in text


@pytest.mark.parametrize(
    "phrase",
    [
        "98.6 %",
        "best validation/accuracy, at step 495 of 540, epoch 11 of 12",
        "exit 0: done",
        "all 12 epochs trained",
        "41.6 s",
        "518.3",
        "591 MiB",
        "of 4.0 GiB",
        "94,538",
        "all trainable",
        "Confusion matrix",
        "samples correct",
        "mistaken for",
        "cpu_threads",
        "requested tcmalloc, effective malloc",
        "LD_PRELOAD was removed",
        "2 of 2",
        "phase",
        "one file read again",
        "jobs/digits.yaml",
        "train.epochs=12",
        "batch_size: 32",
    ],
)
def test_page_and_markdown_have_the_same_content(finished_run: Path, phrase: str) -> None:
    assert phrase in re.sub(r"\s+", " ", read_page(finished_run).text)
    assert phrase in (finished_run / "report.md").read_text(encoding="utf-8").replace("&lt;", "<")


def test_every_decision_has_its_reason(finished_run: Path) -> None:
    plan = json.loads((finished_run / "plan.json").read_text(encoding="utf-8"))
    text = read_page(finished_run).text
    for decision in plan["decisions"]:
        assert decision["name"] in text
        assert decision["reason"] in text


def test_time_outside_of_all_phases_is_shown(finished_run: Path) -> None:
    assert "| other | 0.40 s | 1 % |" in (finished_run / "report.md").read_text(encoding="utf-8")


def test_json(finished_run: Path) -> None:
    data = json.loads((finished_run / "report.json").read_text(encoding="utf-8"))
    best = {"metric": "validation/accuracy", "value": 0.9861, "step": 495, "epoch": 11}
    assert data["best"] == best | {"metrics": BEST_METRICS}
    assert (data["status"], data["exit_code"]) == ("done", 0)
    assert [alert.partition(":")[0] for alert in data["alerts"]] == ["allocator"]


def test_page_is_closed_and_loads_nothing(finished_run: Path) -> None:
    page = read_page(finished_run)
    assert page.open == []
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert page.loads
    assert all(load.startswith(("#", "data:image/png;base64,")) for load in page.loads)
    assert len(page.ids) == len(set(page.ids))
    assert {load[1:] for load in page.loads if load.startswith("#")} <= set(page.ids)
    assert "http" not in (finished_run / "report.html").read_text(encoding="utf-8").replace("http-equiv", "")


def test_same_files_same_bytes(run: Path, finished_run: Path) -> None:
    write(run)
    for name in ("report.html", "report.md", "report.json"):
        assert (run / name).read_bytes() == (finished_run / name).read_bytes()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ("stopped", 75, "exit 75: stopped early by a signal or a time limit"),
        ("failed", 5, "exit 5: the budget for non-finite steps is spent"),
        ("failed", 1, "exit 1: failed"),
        ("running", None, "still running, or killed before it could record its end"),
    ],
)
def test_endings(run: Path, status: str, code: int | None, message: str) -> None:
    change_json(run / "state.json", lambda s: s.update(status=status, exit_code=code))
    assert f"**{status}**: {message}" in text_of(run)


def test_a_wheel_has_every_file_of_the_package() -> None:
    """Without its template, an installed package writes no report."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = set(project["tool"]["setuptools"]["package-data"]["drivetrain"])
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    assert {file for file in files if not file.endswith((".py", ".pyc"))} == named


def test_values_that_are_not_finite(run: Path) -> None:
    bad = [{"step": s, "epoch": 0, "train/loss": math.nan if s > 7 else 1.0, "lr": math.inf} for s in range(10)]
    write_rows(run / "metrics.jsonl", bad)
    text = text_of(run)
    assert says(text, "values-nan-infinite", "train/loss", 2)
    assert says(text, "lr-values-nan-infinite", 10)


def test_several_heads(run: Path) -> None:
    heads = ("mode", "cause")
    write_rows(
        run / "metrics.jsonl",
        [{"step": s, "epoch": s, **{f"validation/{h}/f1": s / 10 for h in heads}} for s in (1, 2)],
    )
    change_json(run / "result.json", lambda r: r.update(confusion={head: confusion(["a", "b", "c"]) for head in heads}))
    assert "## Confusion matrix of mode" in text_of(run)
    page = re.sub(r"\s+", " ", read_page(run).text)
    for phrase in ("Macro F1 validation/mode 0.2 validation/cause 0.2", "Confusion matrix of cause"):
        assert phrase in page
    assert len(read_page(run).ids) == len(set(read_page(run).ids))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 4, "nowhere: there is no such folder"),
        (["."], 4, ".: it contains no file of a run\n  possible: a run folder contains job.yaml"),
        ([], 2, "0 arguments\n  possible: one run folder"),
    ],
)
def test_command_errors(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_command_needs_no_torch_and_no_home(run: Path) -> None:
    code = "import sys; from drivetrain.report.__main__ import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MPL", "XDG"))} | {"HOME": "/dev/null"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(run)],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (run / "report.html").exists()


def test_tables_scroll_where_they_do_not_fit(finished_run: Path) -> None:
    source = (finished_run / "report.html").read_text(encoding="utf-8")
    assert source.count("<table") == source.count('<div class="scroll"><table')
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", source)
    assert re.search(r"\.tiles dd \{[^}]*white-space: nowrap", source), "a number stays with its unit"


def test_an_evaluation_is_not_counted_as_zero_speed(run: Path) -> None:
    """The last reading is mostly taken during an evaluation; the legend shows the last speed of training."""
    readings = [{"seconds": s, "step": s, "samples_per_second": speed} for s, speed in enumerate((480.0, 512.0, 0.0))]
    write_rows(run / "telemetry.jsonl", readings)
    write(run)
    assert "samples/s 512" in re.sub(r"\s+", " ", read_page(run).text)
    (run / "result.json").unlink()
    change_json(run / "state.json", lambda s: s.update(status="stopped", exit_code=75))
    write_rows(
        run / "telemetry.jsonl", [{"seconds": s, "samples_per_second": y} for s, y in enumerate((0.0, 300.0, 0.0))]
    )
    assert "| speed | 300 | samples/s |" in text_of(run)


def test_a_run_that_continues_another_says_so_and_marks_where(tmp_path: Path) -> None:
    run = make_run(tmp_path / "digits-002")
    write(run)
    assert "digits-001" not in (run / "report.html").read_text()
    record = {"run": "digits-001", "step": 225, "epoch": 5}
    (run / "extension.json").write_text(json.dumps(record))
    write(run)
    page = (run / "report.html").read_text()
    assert "continues digits-001 after epoch 5, step 225" in page
    assert page.count("digits-001</text>") == 3  # loss, accuracy, F1
    assert "continues digits-001 after epoch 5, step 225" in (run / "report.md").read_text()
    (run / "extension.json").write_text("{")
    write(run)
    assert "extension.json: cut" in (run / "report.md").read_text()


def test_the_headline_is_a_score_and_not_a_loss(run: Path) -> None:
    """The count of right samples and its interval say how sure it is; a loss alone is set in smaller type."""
    text = text_of(run)
    assert re.search(r"\n3\d\d of 360 right: 9\d to 9\d %; best validation/accuracy, at step 495", text)
    change_json(run / "result.json", lambda r: r["best"].update(metric="validation/loss", value=0.0587))
    text = text_of(run)
    assert re.match(r"# digits-001: 98.6 %\n\n3\d\d of 360 right.*; validation/accuracy with", text)
    assert '<h1 class="plain">' not in (run / "report.html").read_text()
    change_json(run / "result.json", lambda r: r["best"].update(metrics={"validation/loss": 0.0587}))
    assert "best validation/loss 0.0587, at step 495" in text_of(run).splitlines()[2]
    assert '<h1 class="plain">' in (run / "report.html").read_text()
    # Beside the count of right samples, a bare percentage would be taken for their share.
    change_json(run / "result.json", lambda r: r["best"].update(metric="validation/f1", value=0.662, metrics={}))
    assert text_of(run).startswith("# digits-001: Macro F1 66.2 %\n")


def test_the_headline_of_several_heads_is_a_score_of_each(run: Path) -> None:
    """The loss of all heads chose the weights, and nobody can read it."""
    metrics = {"validation/loss": 0.37, "validation/modo/accuracy": 0.5, "validation/causa/accuracy": 0.875}
    best = {"metric": "validation/loss", "value": 0.37, "metrics": metrics}
    change_json(run / "result.json", lambda r: r.update(confusion={}, best=r["best"] | best))
    lines = text_of(run).splitlines()
    assert lines[0] == "# digits-001: modo accuracy 50 % · causa accuracy 87.5 %"
    assert lines[2].startswith("best validation/loss 0.37, at step 495")


def test_an_error_has_the_unit_of_its_column(run: Path) -> None:
    best = {"metric": "validation/rmse", "value": 3.25, "step": 1, "epoch": 1, "metrics": {}}
    numbers = {"": {"columns": ["price"], "pairs": [[[1.0], [2.0]]]}}
    change_json(run / "result.json", lambda r: r.update(best=best, confusion=numbers, epochs=1))
    text = text_of(run)
    assert "# digits-001: 3.25\n" in text
    assert "unit of price" in text
    assert "| 1 epoch |" in text
    assert "of 1 samples" not in text, "a plot of one dot"


def test_a_chart_has_more_than_one_value(run: Path) -> None:
    rows = [{"step": step, "epoch": 0, "train/loss": 1.0 / step} for step in range(1, 9)]
    write_rows(run / "metrics.jsonl", [*rows, {"step": 8, "epoch": 0, "validation/accuracy": 0.9, "lr": 0.1}])
    write_rows(run / "telemetry.jsonl", telemetry()[:1])
    write(run)
    source = (run / "report.html").read_text(encoding="utf-8")
    assert re.findall("<figcaption><b>([^<]*)</b>", source) == ["Loss"]
    assert says(source, "measured-once-accuracy", "0.9")


def test_from_which_bytes_a_run_was_made(run: Path) -> None:
    assert "SHA-256" not in text_of(run), "one that has not ended has no record of it"
    made_from = {"image": {"name": "cpu", "id": "sha256:11"}, "torch": "2.13.0", "drivetrain": "0.1.0"}
    made_from |= {"data": {"data.train": "d1"}, "code": {"net.py": "c1"}, "model": "m1"}
    change_json(run / "state.json", lambda s: s.update(commits=["c" * 40, "d" * 40], made_from=made_from))
    text = text_of(run)
    for row in (
        f"| commit of the job's folder | {'c' * 40} |",
        f"| commit when it was resumed | {'d' * 40} |",
        "| image ID | sha256:11 |",
        "| versions | drivetrain 0.1.0 |",
        "| SHA-256 of data.train | d1 |",
        "| SHA-256 of net.py | c1 |",
        "| SHA-256 of the weights | m1 |",
    ):
        assert row in text.replace("\\", ""), row
    assert "drivetrain train runs/digits-001/job.yaml --plan runs/digits-001/plan.json" in text.replace("\\", "")
    assert "drivetrain evaluate digits-001" in text
    assert says(text, "also-selected-weights")
    wrong = {"data": 3, "code": [], "image": "x"}
    change_json(run / "state.json", lambda s: s.update(commits={}, made_from=wrong))
    assert "not under git" in text_of(run)
