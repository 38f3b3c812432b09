"""`watch`: of a run that goes on, has ended or was killed; on a terminal and in a log."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drivetrain.tracking.live import live_view as watching
from drivetrain.tracking.live.run_reader import RunReader
from tests.messages import says
from tests.paths import ROOT
from tests.report_folder import change_json, make_live_run

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_live_run(tmp_path / "digits-001")


def watch(run: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drivetrain", "watch", str(run)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, **options)


def test_watch_of_a_finished_run_in_a_log(run: Path) -> None:
    change_json(run / "state.json", lambda s: s.update(status="done", exit_code=0))
    done = watch(run)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"watching {run}"
    assert done.stdout.splitlines()[-1].startswith("done at step 270, best validation/accuracy 0.9")
    assert not CONTROL.search(done.stdout)


def test_the_best_epoch_is_that_of_the_training(run: Path) -> None:
    """By the metric that the training goes by, and of equal values the one with the lower loss."""
    change_json(run / "progress.json", lambda p: p.update(best="validation/f1"))
    scores = [(0.9, 0.5, 0.3), (0.9, 0.8, 0.2), (0.95, 0.8, 0.1), (0.99, 0.8, 0.4)]
    lines = [
        {"step": 270 + n, "epoch": n, "validation/accuracy": a, "validation/f1": f, "validation/loss": loss}
        for n, (a, f, loss) in enumerate(scores)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    view = RunReader(run).read()
    assert (view.metric, view.best) == ("validation/f1", (0.8, 3))


def test_a_loss_that_chooses_the_weights_is_shown_by_a_score(run: Path) -> None:
    change_json(run / "progress.json", lambda p: p.update(best="validation/loss"))
    view = RunReader(run).read()
    assert (view.metric, view.score_name) == ("validation/loss", "validation/accuracy")
    assert view.best == (view.score.last, 7)


def test_the_plan_in_the_live_view_is_what_differs_from_doing_nothing(run: Path) -> None:
    rows = [("precision", "fp32"), ("prefix_precision", "fp32"), ("cpu_threads", 2), ("channels_last", True)]
    decisions = [{"name": name, "value": value} for name, value in rows]
    change_json(run / "plan.json", lambda plan: plan.update(decisions=decisions))
    plan_text = " ".join(RunReader(run).read().plan)
    assert "fp32" not in plan_text
    assert "channels_last" in plan_text


def test_watch_loads_no_torch(run: Path) -> None:
    change_json(run / "state.json", lambda s: s.update(status="done"))
    code = (
        "import sys; from pathlib import Path; from drivetrain.tracking.live.live_view import watch\n"
        f"watch(Path({str(run)!r})); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_watch_of_a_run_whose_supervisor_was_killed(run: Path) -> None:
    for name in ("job.yaml", "state.json", "telemetry.jsonl"):
        os.utime(run / name, (1e9, 1e9))
    done = watch(run)
    assert (done.returncode, done.stdout.splitlines()[-1][:18]) == (0, "killed at step 270")


def test_a_silent_but_locked_run_is_alive(run: Path) -> None:
    for name in ("job.yaml", "state.json", "telemetry.jsonl"):
        os.utime(run / name, (1e9, 1e9))
    import fcntl

    with (run / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert watching.read_view(RunReader(run)).status == "running"
    assert watching.read_view(RunReader(run)).status == "killed"


def test_watch_of_nothing(tmp_path: Path) -> None:
    done = watch(tmp_path / "nowhere")
    assert done.returncode == 4
    assert says(done.stderr, "there-is-no-such-folder")


def on_a_terminal(run: Path, **environment: str) -> tuple[subprocess.Popen[bytes], int]:
    """`watch` on a pseudo terminal of 80 columns."""
    terminal, child_terminal = pty.openpty()
    variables = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
    variables |= {"TERM": "xterm-256color", **environment}
    command = [sys.executable, "-m", "drivetrain", "watch", str(run)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=child_terminal, stdout=child_terminal, stderr=child_terminal, env=variables
    )
    os.close(child_terminal)
    return process, terminal


def read_terminal(terminal: int, until: str = "") -> str:
    text = b""
    while not until or until not in text.decode(errors="replace"):
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
        text += part
    return text.decode(errors="replace")


def test_watch_on_a_terminal_ends_with_the_run(run: Path) -> None:
    process, terminal = on_a_terminal(run)
    text = read_terminal(terminal, until="of 4.0 GiB")
    change_json(run / "state.json", lambda s: s.update(status="done", exit_code=0))
    text += read_terminal(terminal)
    assert process.wait(30) == 0
    assert "\x1b[J" in text
    assert "\x1b[?25l" not in text  # a cursor that is never hidden needs nobody to show it again
    assert "done 0:20" in text.split("\x1b[J")[-1].replace("\x1b[0m", "").replace("\x1b[32m", "")


def test_ctrl_c_leaves_quietly_and_the_run_alone(run: Path) -> None:
    process, terminal = on_a_terminal(run)
    text = read_terminal(terminal, until="of 4.0 GiB")
    process.send_signal(signal.SIGINT)
    text += read_terminal(terminal)
    assert process.wait(30) == 0
    assert "Traceback" not in text
    assert json.loads((run / "state.json").read_text())["status"] == "running"


def test_no_color_means_plain_lines_even_on_a_terminal(run: Path) -> None:
    change_json(run / "state.json", lambda s: s.update(status="done"))
    process, terminal = on_a_terminal(run, NO_COLOR="1")
    text = read_terminal(terminal)
    assert process.wait(30) == 0
    assert "\x1b" not in text
    assert "done at step 270" in text


def test_the_number_of_steps_follows_a_run_that_becomes_longer(run: Path) -> None:
    reader = RunReader(run)
    first = reader.read().total
    change_json(run / "progress.json", lambda p: p.update(steps=p["steps"] + 90))
    assert reader.read().total == first + 90
