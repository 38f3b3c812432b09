"""What `evaluate` prints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runtime.errors import DataError
from runtime.inference import evaluate
from runtime.report.confusion import Confusion
from tests.models.test_initial_weights import follow
from tests.trained import CASES, trained


def test_mistakes_are_counted_among_the_samples_of_their_class(capsys: pytest.CaptureFixture[str]) -> None:
    """For classes that are numbers it said `2.8% of 5`."""
    evaluate._show("data", {"accuracy": 0.9}, [Confusion("", ("5", "9"), ((35, 1), (2, 34)))])
    told = capsys.readouterr().out
    assert "5 predicted as 9: 1 of 36 (2.8%)" in told
    assert "9 predicted as 5: 2 of 36 (5.6%)" in told


def test_without_the_earlier_run_other_data_can_be_evaluated(tmp_path: Path) -> None:
    """The message meant the run itself: did you mean runs/two-001?"""
    case = CASES["table"]
    trained(case, tmp_path)
    follow(tmp_path, case)
    second = tmp_path / "second"
    second.mkdir()
    shutil.copy(tmp_path / "next.yaml", second / "job.yaml")
    (second / "state.json").write_text(f'{{"status": "done", "source": "{tmp_path / "next.yaml"}"}}')
    assert evaluate.stored_job(second).name == "next"
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(DataError, match=r"model\.from: .*run does not exist") as refused:
        evaluate.stored_job(second)
    assert refused.value.action == "restore what the run started from, or pass other data with --data PATH"
