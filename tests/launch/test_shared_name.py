"""Two checkouts with the default project name of compose: the `up` of one stops the training of the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from drivetrain.launch import shared_name
from tests.messages import says
from tests.paths import ROOT


def start(state: Path, checkout: str) -> None:
    """Start a container of a checkout, with the mounts that it sees."""
    mounts = state / "mountinfo"
    mounts.write_text(
        f"106 88 254:0 {checkout} /workspace ro - ext4 /dev/vda rw\n111 106 254:0 {checkout}/runs /workspace/runs rw - e /d rw\n"
    )
    shared_name.report_other_checkout(state, mounts)


def test_the_second_checkout_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(shared_name.PROJECT_NAME, shared_name.DEFAULT)
    for checkout in ("/home/ana/drivetrain", "/home/ana/drivetrain"):
        start(tmp_path, checkout)
        assert capsys.readouterr().out == ""
    start(tmp_path, "/home/ben/drivetrain")
    printed = capsys.readouterr().out
    assert says(printed, "checkout-same-project-name", "/home/ana/drivetrain")
    assert re.search(r"echo COMPOSE_PROJECT_NAME=drivetrain-[0-9a-f]{8} >> \.env$", printed.strip())
    monkeypatch.setenv(shared_name.PROJECT_NAME, "drivetrain-ben")
    start(tmp_path, "/home/ana/drivetrain")
    assert capsys.readouterr().out == ""


def test_the_default_is_that_of_compose() -> None:
    name = yaml.safe_load((ROOT / "compose.yaml").read_text())["name"]
    assert name == f"${{COMPOSE_PROJECT_NAME:-{shared_name.DEFAULT}}}"
    trainer = yaml.safe_load((ROOT / "compose/base.yaml").read_text())["services"]["trainer"]
    assert trainer["environment"][shared_name.PROJECT_NAME] == name
