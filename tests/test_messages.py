"""Sentences that tests expect: a new wording changes golden/messages.json alone, and neither a figure nor a name."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import messages
from tests.messages import begins_with, ends_with, get_message, omits, says, says_each, says_only
from tests.paths import IMPORTS, ROOT, TESTS

SENTENCES = {
    "a-sorted": "{0}: rows were sorted by {1}",
    "no-room": "the cache has no space for more at a time",
    "shared-setting": "optimize.micro_batch is {0}, use --new",
}


@pytest.fixture
def messages_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of three messages in place of that of the tests."""
    path = tmp_path / "messages.json"
    path.write_text(messages.format_messages(SENTENCES), encoding="utf-8")
    monkeypatch.setattr(messages, "FILE", path)
    monkeypatch.delenv(messages.REWRITE, raising=False)
    messages.read_messages.cache_clear()
    yield path
    messages.read_messages.cache_clear()


def list_changes(messages_file: Path) -> dict[str, str]:
    stored: dict[str, str] = json.loads(messages_file.read_text(encoding="utf-8"))
    return {key: text for key, text in stored.items() if SENTENCES[key] != text}


@pytest.mark.parametrize(
    ("compare", "said", "values"),
    [
        (says, "note: a.csv: rows were sorted by t\n", ("a.csv", "t")),
        (says, ["other", "note: a.csv: rows were sorted by t"], ("a.csv", "t")),
        (says_only, ["other", "a.csv: rows were sorted by 7"], ("a.csv", 7)),
        (begins_with, "a.csv: rows were sorted by t.", ("a.csv", "t")),
        (ends_with, "note: a.csv: rows were sorted by t", ("a.csv", "t")),
        (omits, "a.csv: rows were sorted by t", ("a.csv", "u")),
    ],
)
def test_what_is_said(
    messages_file: Path, compare: Callable[..., bool], said: str | list[str], values: tuple[object, ...]
) -> None:
    assert compare(said, "a-sorted", *values)


@pytest.mark.parametrize(
    ("compare", "said", "values"),
    [
        (says, "a.csv: rows were sorted", ("a.csv", "t")),
        (says, [], ("a.csv", "t")),
        (says_only, "note: a.csv: rows were sorted by t", ("a.csv", "t")),
        (says_only, None, ("a.csv", "t")),
        (begins_with, "note: a.csv: rows were sorted by t", ("a.csv", "t")),
        (ends_with, "a.csv: rows were sorted by t.", ("a.csv", "t")),
        (says, "a.csv: rows were sorted by t", ("a.csv",)),
        (says, "a.csv: rows were sorted by t", ("a.csv", "t", 1)),
    ],
)
def test_what_is_not_said(
    messages_file: Path, compare: Callable[..., bool], said: str | list[str], values: tuple[object, ...]
) -> None:
    with pytest.raises(AssertionError, match=r"a-sorted is not in the text|values for"):
        compare(said, "a-sorted", *values)


@pytest.mark.parametrize(
    ("said", "same"),
    [
        ((1, "a.csv: rows were sorted by t"), True),
        ((2, "a.csv: rows were sorted by t"), False),
        ((1, "a.csv: rows were sorted by t", 3), False),
        ((1,), False),
    ],
)
def test_each_is_what_it_should_be(messages_file: Path, said: tuple[object, ...], same: bool) -> None:
    assert says_each(said, (1, get_message("a-sorted", "a.csv", "t"))) == same


@pytest.mark.parametrize(
    ("part", "values", "template"),
    [
        ("2 of 2 rows in a.csv", ("2", "2", "a.csv"), "{0} of {1} rows in {2}"),
        ("a.csv and a.csv.gz, 0.5 of 5", ("a.csv", "5"), "{0} and a.csv.gz, 0.5 of {1}"),
        ("12 rows", ("2",), None),
    ],
)
def test_where_values_go(part: str, values: tuple[str, ...], template: str | None) -> None:
    assert messages.insert_places(part, values) == template


def test_a_new_wording_fails_until_it_is_written(messages_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "12:00 load a.csv, b.csv\nnote: a.csv: the rows have been sorted by t; 3 s\ndone"
    with pytest.raises(AssertionError, match=r"nearest:  .*\{0\}: the rows have been sorted by \{1\}"):
        says(said, "a-sorted", "a.csv", "t")
    assert not list_changes(messages_file)
    monkeypatch.setenv(messages.REWRITE, "1")
    assert says(said, "a-sorted", "a.csv", "t")
    new = {"a-sorted": "{0}: the rows have been sorted by {1}"}
    assert list_changes(messages_file) == new
    monkeypatch.delenv(messages.REWRITE)
    messages.read_messages.cache_clear()
    assert says(said, "a-sorted", "a.csv", "t")


@pytest.mark.parametrize(
    ("said", "key", "values"),
    [
        ("a.csv: the rows have been sorted by u", "a-sorted", ("a.csv", "t")),
        ("optimize.batch is 4, use --new", "shared-setting", (4,)),
        ("optimize.micro_batch is 4, use --extend", "shared-setting", (4,)),
        ("the disk is full", "no-room", ()),
        ("", "no-room", ()),
    ],
    ids=["another value", "another key", "another option", "another sentence", "nothing"],
)
def test_another_statement_is_no_new_wording(
    messages_file: Path, monkeypatch: pytest.MonkeyPatch, said: str, key: str, values: tuple[object, ...]
) -> None:
    monkeypatch.setenv(messages.REWRITE, "1")
    with pytest.raises(AssertionError, match=f"{key} is not in the text"):
        says(said, key, *values)
    assert not list_changes(messages_file)


def test_one_key_does_not_stand_for_two_messages(messages_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(messages.REWRITE, "1")
    first, second = "the cache has no space for more now", "this cache has no room for more at a time"
    assert says(first, "no-room")
    with pytest.raises(AssertionError, match="no-room stands for two messages"):
        says(second, "no-room")


def test_a_sentence_of_two_lines_stays_one(messages_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"two-lines": "{0} is not there\n  possible: a file of rows\n"}
    messages_file.write_text(messages.format_messages(stored), encoding="utf-8")
    monkeypatch.setenv(messages.REWRITE, "1")
    said = "error\na.csv does not exist\n  possible: a file with rows\n  do: nothing\n"
    assert says(said, "two-lines", "a.csv")
    new = {"two-lines": "{0} does not exist\n  possible: a file with rows\n"}
    assert json.loads(messages_file.read_text(encoding="utf-8")) == new


def test_workers_write_in_turn(messages_file: Path, tmp_path: Path) -> None:
    """Four processes of xdist run the tests of two files, and each process has its own memory of the messages."""
    (tmp_path / "conftest.py").write_text(
        f"from pathlib import Path\nfrom tests import messages\nmessages.FILE = Path({str(messages_file)!r})\n"
    )
    for number, line in enumerate(
        (
            'says("a.csv: the rows are sorted by t", "a-sorted", "a.csv", "t")',
            'says("this cache has no space for more at a time", "no-room")',
        )
    ):
        (tmp_path / f"test_{number}.py").write_text(
            "import os\nimport pytest\nfrom tests.messages import says\n"
            "@pytest.mark.parametrize('turn', range(4))\n"
            "def test_in_a_forked_process(turn):\n"
            "    child = os.fork()\n"
            "    if not child:\n"
            "        try:\n"
            f"            os._exit(0 if {line} else 1)\n"
            "        except AssertionError:\n"
            "            os._exit(1)\n"
            "    assert os.waitpid(child, 0)[1] == 0\n"
        )  # fmt: skip

    def run_tests(**variables: str) -> int:
        options = ["-q", "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
        command = [sys.executable, "-m", "pytest", *options]
        environ = {**os.environ, "PYTHONPATH": IMPORTS, **variables}
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, check=False).returncode

    assert run_tests() == 1
    assert not list_changes(messages_file)
    assert run_tests(**{messages.REWRITE: "1"}) == 0
    assert set(list_changes(messages_file)) == {"a-sorted", "no-room"}
    assert run_tests() == 0


def list_calls() -> Iterator[tuple[str, str, str, int | None]]:
    """Every call with a key: where, the function, the key, and how many values, None where a list brings them."""
    for path in sorted(TESTS.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "from tests.messages import" not in source or path == Path(__file__):
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            # `(says if expected else omits)(text, key)` says in one of the cases.
            function = node.func.body if isinstance(node.func, ast.IfExp) else node.func
            if isinstance(function, ast.Name) and function.id in FIRST_VALUE:
                first = FIRST_VALUE[function.id]
                values = None if any(isinstance(one, ast.Starred) for one in node.args) else len(node.args) - first
                name = "says" if isinstance(node.func, ast.IfExp) else function.id
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield where, name, ast.literal_eval(node.args[first - 1]), values


FIRST_VALUE = dict.fromkeys(("says", "says_only", "begins_with", "ends_with", "omits"), 2) | dict.fromkeys(
    ("get_message", "saying"), 1
)
"""Which argument of each function is the first value, behind the key."""


def test_every_key_is_used_with_its_values() -> None:
    stored = messages.read_messages()
    wrong = []
    for where, _, key, values in list_calls():
        places = len({part for part in "0123456789" if f"{{{part}}}" in stored.get(key, "")})
        if key not in stored or values not in (None, places):
            wrong.append(f"{where}: {key}: {values} values for {stored.get(key)!r}")
    assert not wrong, "\n".join(wrong)
    assert set(stored) == messages.list_used_keys() & set(stored), "run `make messages`, which drops what is unused"
    assert messages.format_messages(stored) == messages.FILE.read_text(encoding="utf-8"), "run `make messages`"


def test_what_is_omitted_somewhere_is_said_elsewhere() -> None:
    """A message that no test expects could be worded anew, and nobody would notice that its absence says nothing."""
    said = {key for _, function, key, _ in list_calls() if function != "omits"}
    assert not [call for call in list_calls() if call[1] == "omits" and call[2] not in said]
