"""The live view: what it reads from a run folder, how it looks, and how it is painted."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from rich.text import Text

from drivetrain.errors import CheckpointError
from drivetrain.system.run_files import JsonLinesTail, RunFiles
from drivetrain.tracking.live.dashboard import format_line, format_time_left
from drivetrain.tracking.live.live_view import Painter, choose_pause
from drivetrain.tracking.live.run_reader import RunReader
from drivetrain.tracking.live.sparkline import MAX_POINTS, Sparkline
from drivetrain.training.progress import Progress
from drivetrain.training.run import Run
from tests.messages import get_message, says, says_each
from tests.report_folder import change_json, make_live_run, metrics, write_rows
from tests.tracking.live.painted_text import read_text

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_live_run(tmp_path / "digits-001")


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def test_a_view_of_a_running_run(run: Path) -> None:
    view = RunReader(run).read()
    assert (view.job, view.task, view.status) == ("digits", "image-classification", "running")
    assert (view.epoch, view.epochs, view.step, view.total) == (7, 12, 270, 540)
    assert view.metric == "validation/accuracy"
    assert view.score.last == view.best[0] if view.best else False
    assert "cpu_threads 1" in view.plan
    assert view.cpus == 2.0
    assert view.seconds_left is not None
    assert 17 < view.seconds_left < 24  # telemetry stands at 263 of 540 steps after 20.5 s
    assert says_each(list(view.events), [get_message("file-read-again")])


def test_only_what_is_new_is_read(run: Path) -> None:
    follower = RunReader(run)
    count = len(follower.read().loss.means)
    append(run / "metrics.jsonl", {"step": 271, "epoch": 6, "train/loss": 0.5, "lr": 1e-3})
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 272, "epo')  # a row that is being written
    view = follower.read()
    assert (view.step, view.epoch, view.loss.last) == (271, 7, 0.5)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ch": 6, "train/loss": 0.25, "lr": 1e-3}\n')
    assert follower.read().loss.last == 0.25
    assert len(follower.view.loss.means) - count <= 2


def test_a_rollback_rewrites_the_metrics(run: Path) -> None:
    follower = RunReader(run)
    follower.read()
    new_metrics = run / ".metrics"
    write_rows(new_metrics, [row for row in metrics() if row["step"] <= 90])
    new_metrics.replace(run / "metrics.jsonl")
    view = follower.read()
    assert (view.step, view.epoch) == (90, 3)


def test_time_continues_after_a_restart(run: Path) -> None:
    follower = RunReader(run)
    before = follower.read().elapsed
    append(run / "telemetry.jsonl", {"seconds": 1.0, "step": 275, "samples_per_second": 500.0})
    assert follower.read().elapsed == before + 1.0


def test_an_empty_log_and_an_invalid_one(tmp_path: Path) -> None:
    tail = JsonLinesTail(RunFiles(tmp_path), "events.jsonl")
    assert tail.read() == ([], False)
    (tmp_path / "events.jsonl").write_text('{"a": 1}\n[2]\nnot json\n{"b": 2}\n')
    assert tail.read() == ([{"a": 1}, {"b": 2}], False)
    (tmp_path / "events.jsonl").write_text("")
    assert tail.read() == ([], True)


@pytest.mark.parametrize("width", [60, 72, 80, 100, 200])
def test_the_picture_fits(run: Path, width: int) -> None:
    lines = read_text(RunReader(run).read(), width).splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= min(width, 100)
    picture_text = "\n".join(lines)
    for phrase in ("7 of 12", "step 270 of 540", "left", "loss", "accuracy", "samples/s", "of 2 busy", "of 4.0 GiB"):
        assert phrase in picture_text, phrase


def test_the_picture_has_its_shapes_and_remarks(run: Path) -> None:
    view = RunReader(run).read()
    view.sample = {
        **view.sample,
        "input_wait": 0.4,
        "gpu_percent": 93.0,
        "gpu_temperature": 81.0,
        "gpu_memory": 30 << 30,
        "gpu_memory_limit": 139 << 30,
    }
    picture_text = read_text(view, 80)
    assert re.search(r"loss +\S+ +█[▁-█]{10,}  from 3", picture_text)
    for phrase in ("input wait 40%", "93% busy", "81 °C", "30.0 GiB of 139.0 GiB", "GPU memory", "epoch 7"):
        assert phrase in picture_text, phrase


@pytest.mark.parametrize(
    ("status", "phrase"),
    [("done", "100%"), ("failed", "50%"), ("stopped", "stopped 0:20"), ("running", "left")],
)
def test_how_a_run_ended_is_on_the_picture(run: Path, status: str, phrase: str) -> None:
    change_json(run / "state.json", lambda s: s.update(status=status))
    assert phrase in read_text(RunReader(run).read(), 80)


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\ntask: custom\ntrain: {epochs: 3, early_stopping: {patience: 2}}\n")
    view = RunReader(tmp_path).read()
    assert view.at_most
    assert "starting 0:00" in read_text(view, 80)
    assert format_line(view) == "epoch 1/3  step 0"


@pytest.mark.parametrize("watched", ["validation/loss", "validation/causa/f1", ""])
def test_every_head_has_its_name_and_score(run: Path, watched: str) -> None:
    text = (run / "job.yaml").read_text()
    (run / "job.yaml").write_text(text.replace("best: null", f"best: {watched or 'null'}"))
    scores = {"modo": (0.61, 0.55), "causa": (0.82, 0.75), "prioridad_del_caso": (0.46, 0.32)}
    row: dict[str, Any] = {"step": 45, "epoch": 0, "validation/loss": 0.5}
    for head, (accuracy, f1) in scores.items():
        row |= {f"validation/{head}/loss": 1.0, f"validation/{head}/accuracy": accuracy, f"validation/{head}/f1": f1}
    write_rows(run / "metrics.jsonl", [{"step": 45, "epoch": 0, "train/loss": 1.0}, row])
    picture_text = read_text(RunReader(run).read(), 80)
    kind = "f1" if watched.endswith("f1") else "accuracy"
    for head, values in scores.items():
        name = head if len(head) < 11 else "prioridad…"
        assert re.search(rf"^{name} +{kind} {values[kind == 'f1']:.4f} ", picture_text, re.MULTILINE), picture_text
    assert bool(re.search(r"^validation +loss 0\.5000", picture_text, re.MULTILINE)) == (watched == "validation/loss")
    assert max(map(len, picture_text.splitlines())) <= 80


def test_one_plain_line(run: Path) -> None:
    text = format_line(RunReader(run).read())
    assert re.fullmatch(r"epoch 7/12  step 270/540  loss 0\.\d{4}  5\d\d samples/s  0:(1[7-9]|2\d) left", text)
    assert format_time_left(75.2, True) == "at most 1:15 left"
    assert format_time_left(None, False) == "estimating time left"


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it contains no file of a run"):
        RunReader(tmp_path)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        RunReader(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "file",
    ["metrics.jsonl", "telemetry.jsonl", "progress.json", "plan.json", "hardware.json", "job.yaml"],
)
def test_values_of_another_kind_count_as_missing(run: Path, file: str) -> None:
    """As in the report: what is left of the run is worth seeing."""
    wrong = {"step": None, "epoch": None, "train/loss": "x", "seconds": [], "decisions": 1, "cpu": "x", "train": "x"}
    (run / file).write_text(json.dumps(wrong) + "\n")
    view = RunReader(run).read()
    assert read_text(view, 80)
    assert format_line(view).startswith("epoch ")


def test_a_curve_keeps_its_shape_and_its_size() -> None:
    curve = Sparkline()
    for value in range(100_000):
        curve.add(1e6 + value)
    curve.add(float("nan"))
    assert len(curve.means) < MAX_POINTS
    assert curve.draw(8) == "▁▂▃▄▅▆▇█"
    assert curve.first == 1e6
    flat = Sparkline()
    flat.add(1.0)
    assert (flat.draw(5), Sparkline().draw(5)) == ("▁", "")


def make_painter(width: int = 80) -> tuple[Painter, io.StringIO, Console]:
    file = io.StringIO()
    console = Console(file=file, width=width, height=10, force_terminal=True, color_system=None, highlight=False)
    return Painter(console), file, console


def picture(*texts: str) -> Any:
    return lambda width: Text("\n".join(texts))


def test_pictures_replace_each_other_and_printed_text_stays_above() -> None:
    painter, file, _ = make_painter()
    painter.start()
    try:
        painter.paint(picture("one", "two"))
        print("a line", end="")
        print("an error", file=sys.stderr)
        painter.paint(picture("three"))
    finally:
        painter.restore_streams()
    assert file.getvalue() == "one\ntwo\n\x1b[2F\x1b[Ja linean error\nthree\n"
    assert sys.stdout is not painter.captured


def test_a_narrower_terminal_is_cleared_first() -> None:
    painter, file, console = make_painter()
    painter.paint(picture("one"))
    console.width = 40
    painter.paint(picture("two"))
    console.width = 60
    painter.paint(picture("three"))
    assert file.getvalue() == "one\n\x1b[2J\x1b[Htwo\n\x1b[1F\x1b[Jthree\n"


def test_a_picture_higher_than_the_terminal_is_cut() -> None:
    painter, file, _ = make_painter()
    painter.paint(picture(*map(str, range(30))))
    assert file.getvalue().count("\n") == 9


def fake(folder: Path, epoch: int = 0, *, decodes: bool = False) -> Run:
    fake_run = SimpleNamespace(
        folder=folder,
        plan=SimpleNamespace(value=lambda name: name == "decode_cache" and decodes),
        counters=SimpleNamespace(epoch=epoch, seconds=100.0),
        clock=SimpleNamespace(seconds=5.0, phases={"checkpoint": 0.5}),
        time_left=lambda: 100.0,
        time_target=None,
        total_steps=40,
        total_epochs=4,
        last_metrics={"validation/loss": 0.5},
        job=SimpleNamespace(
            train=SimpleNamespace(early_stopping=None, max_time=None), best=lambda: "validation/accuracy"
        ),
        dataset=SimpleNamespace(validation=range(96), test=None),
        batches=SimpleNamespace(per_epoch=10, batch_size=32),
        best_metric=SimpleNamespace(best=SimpleNamespace(metric="validation/accuracy")),
    )
    return cast(Run, fake_run)


@pytest.mark.parametrize(("columns", "is_shown"), [(4, True), (5, False)])
def test_many_columns_are_not_in_the_line_of_an_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: int, is_shown: bool
) -> None:
    progress, run = Progress(40), fake(tmp_path)
    scores = {f"validation/c{n}/{metric}": 1.0 for n in range(columns) for metric in ("mae", "rmse", "r2")}
    run.last_metrics = {"validation/loss": 0.5, "validation/rmse": 2.0} | scores
    progress.report_evaluation(run, "")
    line = capsys.readouterr().out
    assert "validation/rmse 2.0000" in line
    assert ("validation/c1/mae" in line) == is_shown


def test_plain_lines_in_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    moments = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
    progress, run = Progress(40), fake(tmp_path)
    for step in range(1, 11):
        progress.report_step(run, step, 1 / step)
    progress.report_evaluation(run, "best")
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "epoch 1/4  step 1/40  loss 1.0000  estimating time left"
    # After 105 s: 36 steps, 4 evaluations and 2 saves of half a second, with a factor of 1.25.
    assert says(lines[1], "forecast-start-saved-model", "2:26", "2:17", "2:36")
    assert lines[2] == "epoch 1/4  step 6/40  loss 0.1667  32 samples/s  0:38 left"  # 34 steps, 4 evaluations of 1 s
    assert lines[3] == "epoch 1/4  validation/loss 0.5000  best"
    ahead = json.loads((tmp_path / "progress.json").read_text())
    expected_fields = {"steps": 40, "steps_per_epoch": 10, "evaluation_steps": 1.0}
    assert ahead == expected_fields | {"best": "validation/accuracy"}
    assert {key: round(value, 1) for key, value in progress.forecast.items()} == {
        "seconds": 146.0, "low": 137.8, "high": 156.2, "steps": 3
    }  # fmt: skip


@pytest.mark.parametrize(("patience", "seconds"), [(0, 110.5), (1, 119.6), (9, 137.8)])
def test_early_stopping_lowers_the_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any, patience: int, seconds: float
) -> None:
    moments = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
    progress, run = Progress(40), fake(tmp_path)
    cast(Any, run.job.train).early_stopping = SimpleNamespace(patience=patience)
    for step in range(1, 11):
        progress.report_step(run, step, 1 / step)
    assert says(capsys.readouterr().out, "early-stopping-may-end")
    assert progress.forecast["low"] == pytest.approx(seconds, abs=0.1)


def test_a_final_test_is_part_of_the_forecast(tmp_path: Path, monkeypatch: Any) -> None:
    moments = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
    progress, run = Progress(40), fake(tmp_path)
    cast(Any, run.dataset).test = SimpleNamespace(split=range(192))
    for step in range(1, 11):
        progress.report_step(run, step, 1 / step)
    assert progress.forecast["seconds"] == 148.0


def test_an_epoch_that_decodes_images_does_not_stand_for_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, run = Progress(40), fake(tmp_path, decodes=True)
    moments = iter([*range(0, 40, 4), *range(40, 50)])
    monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
    for step in range(1, 21):
        run.counters.epoch = (step - 1) // 10
        progress.report_step(run, step, 1 / step)
    first, corrected = (line for line in capsys.readouterr().out.splitlines() if line.startswith("forecast"))
    # After 105 s: the 100 s that are allowed; then 26 steps and 3 evaluations of 1 s. Two saves take 1 s.
    assert (get_times(first), get_times(corrected)) == (["3:26"], ["2:15"])
    assert says(first, "later-epochs-need-decode")
    assert says(corrected, "corrected-images-decoded")
    assert round(progress.forecast["seconds"]) == 135


def get_times(line: str) -> list[str]:
    return re.findall(r"about (\d+:\d\d)", line)


@pytest.mark.parametrize(("seconds", "logged"), [(0.1, 21), (6.0, 100)])
def test_a_log_has_not_a_line_for_each_of_many_short_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seconds: float, logged: int
) -> None:
    run, progress = fake(tmp_path), Progress(1000)
    cast(Any, run.job.train).epochs = cast(Any, run).total_epochs = 100
    for epoch in range(100):
        monkeypatch.setattr(time, "monotonic", lambda now=seconds * epoch: now)
        run.counters.epoch = epoch
        progress.report_evaluation(run, "")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == logged
    assert [lines[0].split()[1], lines[-1].split()[1]] == ["1/100", "100/100"]


@pytest.mark.parametrize(("cost", "seconds"), [(0.0, 1.0), (0.003, 1.0), (0.02, 4.0), (1.0, 10.0)])
def test_an_expensive_picture_is_painted_less_often(cost: float, seconds: float) -> None:
    assert choose_pause(cost) == pytest.approx(seconds)


def test_an_unwritable_folder_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Progress(40).report_step(fake(tmp_path / "nowhere"), 1, 1.0)
    assert says(capsys.readouterr().out, "drivetrain-watch-show-time")
