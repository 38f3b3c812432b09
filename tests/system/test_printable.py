"""Whatever data holds, a terminal only shows it, and no line of ours comes from it."""

from __future__ import annotations

import ast
import csv
import io
import json
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from drivetrain.errors import DataError, Problem, SpecError
from drivetrain.inference import predict
from drivetrain.system import console
from drivetrain.system.printable import printable, printable_json, printable_lines, printable_text
from tests.paths import ROOT

HOSTILE = "a\nrun runs/../../x starts\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp\u2066\u2028b\udcff\x7f"
UNSAFE = set("\x1b\x07\r\x9b\u202e\u2066\u2028\u2029\udcff\x7f\x85\x00\x08")
DATA = {"runtime/drivetrain/launch/follow_container.py"}
"""Passes on what a container prints."""
FOR_PROGRAMS = {
    "runtime/drivetrain/cli/doctor/torch_process.py",
    "runtime/drivetrain/launch/image_contents.py",
    "runtime/drivetrain/launch/project.py",
    "runtime/drivetrain/pretrained/unpickle_process.py",
    "runtime/drivetrain/system/child_process.py",
}
"""Their output is read by a program: numbers, hashes and JSON."""
FIXED = {
    "runtime/drivetrain/cli/command_line.py",
    "runtime/drivetrain/cli/commands.py",
    "runtime/drivetrain/tracking/live/time_left.py",
}
"""Print texts of their own: first steps, a script for a shell, a line of numbers that moves."""


def is_clean(text: str) -> bool:
    return not UNSAFE & set(text) and not any(line.startswith("run runs/") for line in text.splitlines())


def test_names_are_shown_on_one_line() -> None:
    assert printable("a\tb\nc\x1b[2J") == r"a\tb\nc\x1b[2J"
    assert is_clean(printable(HOSTILE))
    assert "\n" not in printable(HOSTILE)
    assert printable("grün 猫 👩\u200d🔬 \u00a0 שלום") == "grün 猫 👩\u200d🔬 \u00a0 שלום"


def test_lines_of_ours_are_indented() -> None:
    assert printable_lines("given\n  possible: x\nrun y") == "given\n  possible: x\\nrun y"
    assert printable_text("a\n\tb\x1b") == "a\n\tb\ufffd"


def test_json_stays_the_same_data() -> None:
    text = json.dumps({"sample": HOSTILE}, ensure_ascii=False)
    assert json.loads(printable_json(text)) == {"sample": HOSTILE}
    assert is_clean(printable_json(text))
    printable_json(text).encode("utf-8")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_everything_printed_is_clean(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    console.say(f"data: classes: {HOSTILE}")
    console.say_aside(f"evaluate: {HOSTILE}")
    console.say_error(DataError(f"data.train: {HOSTILE}", f"one of {HOSTILE}", HOSTILE))
    console.say_error(
        SpecError([Problem("a.yaml:1:1", "x", HOSTILE, "b", "c"), Problem("a.yaml:2:1", "y", "g", "", "")])
    )
    console.say_json({HOSTILE: HOSTILE})
    table = Table("name", "value", box=None)
    table.add_row(HOSTILE, Text(HOSTILE))
    screen = console.open_console(stream)
    screen.print(table)
    screen.print(f"{HOSTILE} predicted", style="dim")
    stream.flush()
    text = content.getvalue().decode(encoding)
    assert is_clean(text)
    assert "\na.yaml:2:1: y: g\n" in text


def test_a_terminal_gets_colors_of_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    console.open_console(stream).print(Text(HOSTILE, style="red"))
    assert "\x1b[31m" in stream.getvalue()
    assert "\x1b]0" not in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()


def test_streams_take_text_that_their_encoding_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    console.guard_output()
    stream.write("grün \udcff")
    stream.flush()
    assert content.getvalue() == rb"gr\xfcn \udcff"


def test_one_function_prints() -> None:
    """Another way to print would need its own care for what data holds."""
    allowed = {"runtime/drivetrain/system/console.py", *DATA, *FOR_PROGRAMS, *FIXED}
    for file in sorted((ROOT / "runtime" / "drivetrain").rglob("*.py")):
        if file.relative_to(ROOT).as_posix() not in allowed:
            assert not list(_prints(file)), file


def _prints(file: Path) -> list[int]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "print"]


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_predictions_are_exact_for_programs_and_clean_for_people(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    name = HOSTILE.replace("\udcff", "")
    answers = [(name, {"": {"prediction": name, "probability": 0.5}})]
    written = {}
    for form, output in (("csv", None), ("jsonl", Path("out.jsonl"))):
        stream = io.StringIO(newline="")
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        predict._write(predict.PredictRequest(Path("runs/x"), [], output), answers, stream)
        written[form] = stream.getvalue()
    assert json.loads(written["jsonl"])["sample"] == name
    if terminal:
        assert is_clean(written["csv"])
        assert is_clean(written["jsonl"])
    else:
        assert list(csv.reader(io.StringIO(written["csv"], newline="")))[1] == [name, name, "0.5"]
