"""The golden file of defaults is what the program decides today; every setting and every class of chip is in it."""

from __future__ import annotations

import subprocess
import sys

from drivetrain import optimizations
from drivetrain.hardware import facts
from drivetrain.plan.chip_profiles import find_profile
from tests.paths import GOLDEN, MACHINES, ROOT

PAGE = GOLDEN / "defaults.md"


def test_the_file_is_what_its_command_prints() -> None:
    command = [sys.executable, "-m", "docs.generate.defaults_page", "tests/machines"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output == PAGE.read_text(encoding="utf-8"), "run `make reference`"


def test_every_setting_has_every_recorded_class_once_or_more() -> None:
    classes = {find_profile(facts.read_hardware(path)) for path in MACHINES.glob("*.json")}
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    assert [section.splitlines()[0] for section in sections] == [one.name for one in optimizations.every()]
    for section in sections:
        cells = [line.split("|")[2] for line in section.splitlines() if line.startswith("| `")]
        assert {name.strip() for cell in cells for name in cell.split(",")} == classes, section
