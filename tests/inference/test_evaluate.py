"""What `evaluate` prints."""

from __future__ import annotations

import pytest

from runtime.inference import evaluate
from runtime.report.confusion import Confusion


def test_mistakes_are_counted_among_the_samples_of_their_class(capsys: pytest.CaptureFixture[str]) -> None:
    """For classes that are numbers it said `2.8% of 5`."""
    evaluate._show("data", {"accuracy": 0.9}, [Confusion("", ("5", "9"), ((35, 1), (2, 34)))])
    told = capsys.readouterr().out
    assert "5 predicted as 9: 1 of 36 (2.8%)" in told
    assert "9 predicted as 5: 2 of 36 (5.6%)" in told
