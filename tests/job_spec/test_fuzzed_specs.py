"""Specs that a machine has broken: every one ends valid or in a message with file, line and column, within a second.

The words of the spec's own grammar are put where they do not belong, beside bytes, bombs and texts that would run
something elsewhere. the nightly run tries 1,000 of them, the ordinary suite fewer.
"""

from __future__ import annotations

import gc
import os
import random
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml

from drivetrain.cli.main import main
from tests import examples
from tests.job_spec.broken_specs import SPLINTERS, break_spec

SECONDS = 1.0
NIGHTLY = int(os.environ.get("DRIVETRAIN_SPECS", "1000"))
PLACE = re.compile(r"(?:    )?job\.yaml:\d+:\d+: ")
REST = re.compile(r"  possible: |  do:       ")
CODE = (
    "!!python/object/apply:os.system ['touch canary']",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/object/new:subprocess.Popen [touch canary]",
    "${HOME}",
    "$(touch canary)",
    "`touch canary`",
    "{{ 7 * 7 }}",
    "__import__('os').system('touch canary')",
    "../../../etc/passwd",
    "/etc/passwd\0",
    "~nobody/x",
    "file:///etc/passwd",
    "http://127.0.0.1:9/x",
    "| touch canary",
)
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    -0.0,
    "",
    " ",
    "x" * 5000,
    "é\u202e",
    [],
    {},
    [[]],
    [None],
    {"": ""},
    {"name": {"name": {}}},
    {"a": 1},
    "1e-4",
    "0x10",
    "5m",
    "4g",
    "2:30",
    "yes",
    "NaN",
    *CODE,
)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (collection, key or index) of a tree."""
    for key, value in list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list):
            yield from places(value)


def list_keys(trees: list[Any]) -> list[str]:
    """All keys of all examples."""
    return sorted({key for tree in trees for where, key in places(tree) if isinstance(where, dict)})


def misspell(word: str, draw: random.Random) -> str:
    """A word with one letter gone, doubled, or exchanged with the next."""
    at = draw.randrange(len(word))
    return draw.choice(
        (word[:at] + word[at + 1 :], word[: at + 1] + word[at:], word[:at] + word[at : at + 2][::-1] + word[at + 2 :])
    )


def grammar(trees: list[Any], draw: random.Random) -> bytes:
    """One of the examples with keys misspelt, removed, moved and given other values."""
    tree = yaml.safe_load(yaml.safe_dump(draw.choice(trees)))
    for _ in range(draw.randint(1, 4)):
        where, key = draw.choice(list(places(tree)) or [(tree, "name")])
        match draw.randrange(5):
            case 0 if isinstance(where, dict):
                where[misspell(str(key), draw) or "x"] = where.pop(key, None)
            case 1:
                where[key] = draw.choice(ODD)
            case 2 if isinstance(where, dict):
                where.pop(key, None)
            case 3 if isinstance(where, dict):
                where[draw.choice(list_keys(trees))] = draw.choice(ODD)
            case _:
                other, from_ = draw.choice(list(places(draw.choice(trees))))
                where[key] = other[from_]
    return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False, default_flow_style=draw.random() < 0.3).encode()


def bomb(draw: random.Random) -> bytes:
    """Small texts that stand for large ones, or never end."""
    size = draw.choice((10, 60, 3000))
    chain = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" if i else "a0: &a0 [x, x]" for i in range(12))
    return draw.choice(
        (
            chain,
            "[" * size,
            "{a: " * size,
            "- " * size,
            "? " * size,
            "&a [*a]",
            "a: &a {<<: *a}",
            "!" * size,
            "name: x\n" * size,
            "'" + "x" * size * 300,
            "a" * (1 << 20) + "b",
            "0x" + "f" * size,
            "1e" + "9" * size,
            "%YAML 1.1\n--- " * 3,
            "\ufeff" * size,
            "|9\n" + " x\n" * size,
        )
    ).encode()


def insert_code(text: bytes, draw: random.Random) -> bytes:
    """A value replaced by text that would run something elsewhere."""
    value_matches = list(re.finditer(rb": ([\w./-]+)", text))
    at = draw.choice(value_matches)
    return text[: at.start(1)] + draw.choice(CODE).encode() + text[at.end(1) :]


def make_spec(seed: int, good_specs: list[bytes], trees: list[Any]) -> bytes:
    draw = random.Random(seed)
    text = draw.choice(good_specs)
    kinds: list[Callable[[], bytes]] = [
        lambda: grammar(trees, draw),
        lambda: grammar(trees, draw),
        lambda: break_spec(text, draw),
        lambda: insert_code(text, draw),
        lambda: bomb(draw),
        lambda: text + b"\n" + draw.choice(SPLINTERS),
    ]
    return kinds[seed % len(kinds)]()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without data: a spec in which nothing is wrong ends with exit 3."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


class TooLong(BaseException):
    """No exception that anything would take for its own."""


def stop(number: int, frame: FrameType | None) -> None:
    raise TooLong


def check(numbers: range, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[int, int]:
    """Validate specs by number; how many ended with which code."""
    good_specs = [path.read_bytes() for path in examples.JOBS]
    trees = [yaml.safe_load(text) for text in good_specs]
    codes: dict[int, int] = {}
    previous_handler = signal.signal(signal.SIGALRM, stop)
    # What earlier tests of this process have left is not searched for garbage while a spec is timed.
    gc.collect()
    gc.freeze()
    try:
        for seed in numbers:
            (folder / "job.yaml").write_bytes(make_spec(seed, good_specs, trees))
            # Processor time, not the wall's: others may use this machine too.
            signal.setitimer(signal.ITIMER_REAL, 20)
            usage_before = resource.getrusage(resource.RUSAGE_SELF)
            code = main(["validate", "job.yaml"])
            usage_after = resource.getrusage(resource.RUSAGE_SELF)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert (
                usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime < SECONDS
            ), seed
            codes[code] = codes.get(code, 0) + 1
            lines = capsys.readouterr().err.splitlines()
            assert code in (0, 2, 3), seed
            assert bool(lines) == (code != 0), seed
            assert all(PLACE.match(line) or REST.match(line) for line in lines), (seed, lines)
            assert code == 0 or PLACE.match(lines[0]), (seed, lines)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
        gc.unfreeze()
    assert sorted(path.name for path in folder.iterdir()) == ["job.yaml"]
    return codes


def test_a_hundred_fuzzed_specs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = check(range(120), folder, capsys)
    assert codes[2] > 60


@pytest.mark.nightly
def test_a_thousand_fuzzed_specs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = check(range(10_000, 10_000 + NIGHTLY), folder, capsys)
    print(
        f"{NIGHTLY} specs: {codes} by exit code, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB at most"
    )
    assert codes[2] > NIGHTLY // 2


def test_an_endless_spec_is_read_only_up_to_the_limit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "job.yaml").open("wb") as file:
        file.truncate(1 << 40)  # a hole, which takes no disk
    assert main(["validate", "job.yaml"]) == 2
    assert "job.yaml:1:1: more than 1048576 bytes" in capsys.readouterr().err
