"""The command line takes options as they are written."""

from __future__ import annotations

import dataclasses
from typing import get_type_hints

import pytest

from drivetrain.cli import command_line, commands, main
from drivetrain.cli.arguments import list_commands, make_parser
from drivetrain.errors import SpecError
from tests.messages import says


def test_an_abbreviation_is_no_consent() -> None:
    """`--run` was taken for `--run-code`, and ran the code of a model folder."""
    with pytest.raises(SpecError, match="--run"):
        make_parser().parse_args(["predict", "--run", "model", "images"])


@pytest.mark.parametrize(
    "arguments",
    [["train", "job.yaml", "--pl"], ["launch", "job.yaml", "--net"], ["evaluate", "--run", "runs/a-001"]],
)
def test_no_option_is_completed(arguments: list[str]) -> None:
    with pytest.raises(SpecError):
        make_parser().parse_args(arguments)


def test_every_command_has_its_function() -> None:
    functions = {name: commands.find_function(name) for name in list_commands(make_parser())}
    assert all(map(callable, functions.values()))
    hints = [get_type_hints(function) for function in functions.values()]
    assert all(("request" in hint) != ("options" in hint) for hint in hints)
    assert all(dataclasses.is_dataclass(hint["request"]) for hint in hints if "request" in hint)


REFUSED = [
    ("trian jobs/digits.yaml", "trian: there is no such command", 'did you mean "train"?'),
    ("Train", "Train: there is no such command", 'did you mean "train"?'),
    ("mine.yaml", "mine.yaml: there is no such command", "to train it: `drivetrain train mine.yaml`"),
    (
        "extend runs/a-001",
        "extend: there is no such command",
        "`drivetrain train JOB --extend RUN` continues a finished run",
    ),
    ("train", "drivetrain train: job is missing", "`drivetrain train --help` explains the arguments"),
    ("predict", "drivetrain predict: run, INPUT are missing", "`drivetrain predict --help` explains the arguments"),
    ("predict a b --output", "--output: expected one argument", "`drivetrain predict --help` explains the arguments"),
    ("repeat a --seeds x", "--seeds: invalid int value: 'x'", "`drivetrain repeat --help` explains the arguments"),
    ("version", "version: there is no such command", "`drivetrain --version` prints it"),
    ("xyz", "xyz: there is no such command", "`drivetrain --help` explains all commands"),
    ("train a.yaml --plian", "--plian: `drivetrain train` has no such option", 'did you mean "--plain"?'),
    ("validate a.yaml --st b=1", "--st: `drivetrain validate` has no such option", 'did you mean "--set"?'),
    (
        "train a.yaml --epochs 3",
        "--epochs: `drivetrain train` has no such option",
        "it is a key of the job: --set train.epochs=3",
    ),
    (
        "plan a.yaml --learning-rate=1e-4",
        "--learning-rate: `drivetrain plan` has no such option",
        "it is a key of the job: --set train.optimizer.lr=1e-4",
    ),
    (
        "train a.yaml --precision bf16",
        "--precision: `drivetrain train` has no such option",
        "it is a key of the job: --set optimize.precision=bf16",
    ),
    ("evaluate a --dta=b", "--dta: `drivetrain evaluate` has no such option", 'did you mean "--data"?'),
    (
        "plan a b",
        "b: `drivetrain plan` takes no such argument",
        "remove it; `drivetrain plan --help` shows all arguments",
    ),
    (
        "plan a --set train.epochs=1 train.seed=2",
        "train.seed=2: `drivetrain plan` takes no such argument",
        "write --set train.seed=2",
    ),
]


@pytest.mark.parametrize(("line", "first_line", "action"), REFUSED)
def test_what_is_mistyped_is_refused_with_the_nearest(
    line: str, first_line: str, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(line.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == first_line
    assert lines[1].startswith("  possible: ")
    assert lines[2] == f"  do:       {action}"


def test_without_a_command_the_first_steps_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main.main([])
    output = capsys.readouterr()
    assert (exit_info.value.code, output.out, output.err) == (2, "", command_line.FIRST_STEPS)
    for step in ("drivetrain train jobs/digits.yaml", "drivetrain init DATA", "drivetrain --help"):
        assert step in output.err


@pytest.mark.parametrize("scheme", ["s3", "az"])
@pytest.mark.parametrize("line", ["report STORE", "predict STORE x.csv", "train a.yaml --extend STORE"])
def test_a_run_in_a_store_is_not_read_there(line: str, scheme: str) -> None:
    with pytest.raises(SpecError) as error:
        command_line.parse(line.replace("STORE", f"{scheme}://me:hidden@b/runs/parts-001").split())
    assert says(str(error.value), "a-run-in-a-store-is-not-read-there")
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    ("command", "scheme", "is_copied"),
    [
        ("train", "s3", True),
        ("repeat", "GS", True),
        ("sweep", "s3", False),
        ("train", "az", False),
        ("train", "https", False),
    ],
)
def test_runs_are_written_to_a_folder(command: str, scheme: str, is_copied: bool) -> None:
    with pytest.raises(SpecError) as error:
        command_line.parse([command, "job.yaml", "--runs", f"{scheme}://me:hidden@b/runs"])
    assert says(str(error.value), "runs-is-an-address")
    assert ("checkpoint.copy_to" in str(error.value)) is is_copied
    assert "hidden" not in str(error.value)
