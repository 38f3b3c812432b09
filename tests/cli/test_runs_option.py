"""`--runs` with the address of an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.cli import runs_option
from drivetrain.cli.command_line import parse
from drivetrain.errors import SpecError


def test_an_address_means_a_copy() -> None:
    arguments = parse(["train", "job.yaml", "--runs", "s3://bucket/runs/", "--set", "train.epochs=1"])
    runs_option.apply(arguments)
    assert arguments.runs == Path("runs")
    assert arguments.set == ["train.epochs=1", "checkpoint.copy_to=s3://bucket/runs"]


def test_a_folder_stays_one() -> None:
    arguments = parse(["train", "job.yaml", "--runs", "there"])
    runs_option.apply(arguments)
    assert arguments.runs == Path("there")
    assert arguments.set == []


@pytest.mark.parametrize("command", [["report"], ["predict", "x.csv"], ["train", "job.yaml", "--extend"]])
def test_a_run_in_a_store_is_not_read_there(command: list[str]) -> None:
    words = (
        [*command, "s3://me:hidden@b/runs/parts-001"]
        if "--extend" in command
        else [command[0], "s3://me:hidden@b/runs/parts-001", *command[1:]]
    )
    with pytest.raises(SpecError, match="b/runs/parts-001: a run in a store") as error:
        parse(words)
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "job.yaml", "--runs", "https://host/x"], "cannot be written"),
        (["train", "job.yaml", "--runs", "s3://a:hidden@b/x"], "--runs: s3://b/x is written with a user or password"),
        (["sweep", "job.yaml", "--runs", "s3://b/x"], "`sweep` copies nothing"),
        (["train", "job.yaml", "--runs", "s3://b/x", "--set", "checkpoint.copy_to=s3://c"], "one of them"),
    ],
)
def test_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(SpecError) as error:
        runs_option.apply(parse(arguments))
    assert message in str(error.value)
    assert "hidden" not in str(error.value)
