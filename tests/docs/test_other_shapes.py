"""docs/other-shapes.md: each example is a program that runs, and trains what it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.paths import ROOT

PAGE = (ROOT / "docs" / "other-shapes.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n.*?```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
BEGIN = re.findall(r"```python\n(.*?)^```", PAGE.partition("\n## ")[0], re.DOTALL | re.MULTILINE)[0]
Names = dict[str, Any]


def is_trained(names: Names) -> bool:
    return names["result"].metrics["validation/loss"] < 10 and (names["result"].folder / "model").is_dir()


CHECKS: dict[str, Callable[[Names], bool]] = {
    "Several outputs": is_trained,
    "Quantiles": is_trained,
    "Distillation": is_trained,
    "GAN": lambda names: names["judge_step"].updates == names["generator_step"].updates == 4,
    "Language model with generation": lambda names: is_trained(names) and names["tokens"].shape == (1, 9),
    "Graphs": is_trained,
    "Hidden state": lambda names: names["step"].updates == 8 and names["network"].state.shape == (1, 4, 8),
    "Catching a stop": lambda names: is_trained(names) and names["result"].folder.name == "stopped-001",
}


def test_every_example_has_its_check() -> None:
    assert list(SECTIONS) == list(CHECKS)


@pytest.mark.parametrize("section", CHECKS)
def test_the_example_runs(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    program = tmp_path / "program.py"
    program.write_text(BEGIN + SECTIONS[section])
    names: Names = {"__name__": "program"}
    exec(compile(program.read_text(), str(program), "exec"), names)
    assert CHECKS[section](names)
