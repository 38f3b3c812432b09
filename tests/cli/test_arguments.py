"""The command line takes options as they are written."""

from __future__ import annotations

import pytest

from runtime.cli.arguments import parser


def test_an_abbreviation_is_no_consent(capsys: pytest.CaptureFixture[str]) -> None:
    """`--run` was taken for `--run-code`, and ran the code of a model folder."""
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["predict", "--run", "model", "images"])
    assert ended.value.code == 2
    assert "--run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["train", "job.yaml", "--pl"], ["launch", "job.yaml", "--net"], ["evaluate", "--run", "runs/a-001"]],
)
def test_no_option_is_completed(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(words)
