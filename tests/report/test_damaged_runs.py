"""No broken file, foreign text or size keeps a report from being written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from drivetrain.report.write import write
from tests.messages import says
from tests.report_folder import change_json, make_run, metrics, telemetry, write_rows
from tests.report_page import read_page

EVIL = "<script src='https://evil.example/x.js'>alert(1)</script>|`*[x](http://evil.example)"


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


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("job.yaml", None, "job.yaml: missing"),
        ("job.yaml", "name: [", "job.yaml: damaged: job.yaml:1:8"),
        ("hardware.json", None, "hardware.json: missing"),
        ("hardware.json", '{"cpu": 3, "gpus": 4}', "hardware.json: not a description of a machine"),
        ("hardware.json", '{"name": "x", "place": "host", "cpu": nul', "hardware.json: cut or damaged"),
        ("plan.json", None, "plan.json: missing"),
        ("plan.json", '{"decisions": [{"name": "x"}]}', "plan.json: not a plan: TypeError"),
        (
            "plan.json",
            '{"decisions": [{"name": [], "value": 1, "source": "job", "reason": "", "effect": ""}]}',
            "plan.json: not",
        ),
        ("plan.json", "[" * 100_000, "plan.json: cut or damaged"),
        ("metrics.jsonl", None, "metrics.jsonl: missing"),
        ("metrics.jsonl", "", "metrics.jsonl: empty"),
        (
            "metrics.jsonl",
            '{"step": 1, "train/loss": 2.0}\n{"step": 2, "tra',
            "metrics.jsonl: the last line (2) is incomplete",
        ),
        ("metrics.jsonl", 'x\n{"step": 1}\n[1]\n{"step": 2}\n', "2 of 4 lines cannot be read, the first is line 1"),
        ("telemetry.jsonl", None, "telemetry.jsonl: missing"),
        ("result.json", None, "result.json: missing"),
        ("result.json", "", "result.json: empty"),
        ("result.json", "[]", "result.json: cut or damaged"),
        ("explanation.json", "[]", "explanation.json: cut or damaged"),
        ("state.json", None, "state.json: missing"),
        ("events.jsonl", "\udcff\udcfe", "events.jsonl: the last line (1) is incomplete"),
    ],
)
def test_damage_is_reported_and_survived(run: Path, file: str, damage: str | None, message: str) -> None:
    if damage is None:
        (run / file).unlink()
    else:
        (run / file).write_bytes(damage.encode("utf-8", "surrogateescape"))
    text = text_of(run)
    assert message in text.replace("\\", "")
    assert read_page(run).open == []
    assert message in read_page(run).text
    alerts = json.loads((run / "report.json").read_text(encoding="utf-8"))["alerts"]
    assert [alert.partition(":")[0] for alert in alerts if alert.startswith(file)] == [file]


@pytest.mark.parametrize(
    "confusion",
    [{"classes": ["a"], "matrix": [[1e308]]}, {"columns": True, "pairs": [[1.0, 1.0]]}],
    ids=["a huge count", "columns that are no list"],
)
def test_values_of_another_kind_in_the_result_are_left_out(run: Path, confusion: dict[str, object]) -> None:
    """They ended `report` with a traceback."""
    change_json(run / "result.json", lambda result: result.update(confusion={"": confusion}))
    assert text_of(run)


def test_events_are_optional(run: Path) -> None:
    (run / "events.jsonl").unlink()
    text = text_of(run)
    assert "events.jsonl" not in text
    assert "## Events" not in text


@pytest.mark.parametrize("file_name", ["state.json", "job.yaml", "metrics.jsonl", "telemetry.jsonl", "plan.json"])
def test_a_single_file_is_enough(run: Path, file_name: str) -> None:
    for path in run.iterdir():
        if path.name != file_name:
            path.unlink()
    assert ": missing" in text_of(run)
    assert read_page(run).open == []


@pytest.mark.parametrize(("status", "code"), [("stopped", 75), ("failed", 5), ("running", None)])
def test_what_is_written_at_the_end_is_not_missing_before(run: Path, status: str, code: int | None) -> None:
    (run / "result.json").unlink()
    change_json(run / "state.json", lambda s: s.update(status=status, exit_code=code))
    text = text_of(run)
    assert ": missing;" not in text
    assert says(text, "numbers-come-logs-since")


def test_without_a_result_the_logs_tell(run: Path) -> None:
    (run / "result.json").unlink()
    change_json(run / "state.json", lambda s: s.update(status="failed", exit_code=137))
    text = text_of(run)
    for phrase in (
        "# digits-001: 98.6 %",
        "at step 540 of 540",
        "exit 137: ended by SIGKILL",
        "| time | 44.0 s |",
        "| peak memory | 572 MiB | of 4.0 GiB (14 %) |",
    ):
        assert phrase in text


def test_foreign_text_stays_text(tmp_path: Path) -> None:
    classes = [EVIL, "</text></svg><b>", "\ud800\x00\x1b[31m", "数字 $x^2$", "#010102", "1.23456", 'a" onload="x']
    run = make_run(tmp_path / "digits-<b>1", classes=classes)
    change_json(run / "plan.json", lambda p: p["decisions"][0].update(reason=EVIL, value=EVIL))
    change_json(run / "plan.json", lambda p: p.update(notes=[EVIL], profile=EVIL))
    change_json(run / "state.json", lambda s: s.update(status=EVIL, source=EVIL))
    change_json(run / "result.json", lambda r: r.update(stopped_because=EVIL, phases={EVIL: 1.0}, last={EVIL: 1.0}))
    write_rows(run / "metrics.jsonl", [{"step": 1, "epoch": 0, EVIL: 1.0}, {"step": 2, "epoch": 0, EVIL: 2.0}])
    write_rows(run / "events.jsonl", [{"time": 1.5, "kind": EVIL, "text": EVIL}])
    column = {"column": EVIL, "mean": 1.0, "spread": 0.1}
    (run / "explanation.json").write_text(json.dumps({"importance": {"metric": EVIL, "columns": [column]}}))
    (run / "job.yaml").write_text(f"name: x\n# {EVIL} ``` </pre>\n", encoding="utf-8")
    write(run)
    page = read_page(run)
    assert "script" not in page.tags
    assert page.open == []
    assert page.text.count("alert(1)") >= 10
    assert not [load for load in page.loads if "evil" in load and not load.startswith("#")]
    for name in ("#010102", "1.23456", "数字 $x^2$"):
        assert name in page.text
    markdown = (run / "report.md").read_text(encoding="utf-8")
    text = re.sub(r"(?ms)^(`{3,})yaml\n.*?^\1$", "", markdown)
    assert len(text) < len(markdown), "blocks in which nothing means anything"
    assert "<script" not in text
    assert not re.search(r"(?<!\\)[\[`]", text)


def test_size(tmp_path: Path) -> None:
    classes = [f"class number {i} with a long name" for i in range(100)]
    run = make_run(tmp_path / "large-001", classes=classes)
    write_rows(run / "metrics.jsonl", metrics(50_000))
    write_rows(run / "telemetry.jsonl", telemetry(5_000))
    write_rows(run / "events.jsonl", [{"time": float(i), "kind": "skip", "text": "x" * 2000} for i in range(5_000)])
    write(run)
    assert (run / "report.html").stat().st_size < 1_000_000
    assert (run / "report.json").stat().st_size < 10_000
    assert "The last 200 of 5000 events" in read_page(run).text
