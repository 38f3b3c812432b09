"""The names of the tests: two workers of xdist that collect at different moments must get the same ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import tiers
from tests.conftest import pytest_make_parametrize_id
from tests.paths import ROOT, TESTS


@pytest.mark.parametrize(
    ("value", "name"),
    [
        pytest.param(b"\x1f\x8b\x08", "content", id="bytes"),
        pytest.param("[" * 100_000, "content", id="long text"),
        pytest.param(f"the project is in {ROOT}", "content", id="path of the checkout"),
        pytest.param("short", None, id="short text"),
        pytest.param(1.5, None, id="number"),
    ],
)
def test_values_that_are_no_plain_text_are_named_by_their_argument(value: object, name: str | None) -> None:
    assert pytest_make_parametrize_id(value, "content") == name


def test_every_slow_file_is_there() -> None:
    """A file that was renamed would be in the quick tests again."""
    assert [name for name in tiers.SLOW if not (TESTS / f"{name}.py").is_file()] == []
    assert all((TESTS / folder).is_dir() for folder in tiers.SLOW_FOLDERS)
    assert tiers.is_slow(Path("docker/test_cpu.py"))
    assert tiers.is_slow(Path("supervisor/test_supervisor.py"))
    assert not tiers.is_slow(Path("plan/test_plan.py"))


def test_no_file_of_tests_imports_another() -> None:
    """What two of them share is in a module that holds no tests: renaming a test breaks no other file."""
    # Programs in strings count, too, so this looks at lines.
    imports = re.compile(
        r"\s*(from tests[.\w]*\.test_\w+ import|from tests[.\w]* import .*\btest_|import tests.*\.test_)"
    )
    lines = [(path, line) for path in TESTS.rglob("*.py") for line in path.read_text(encoding="utf-8").splitlines()]
    assert [f"{path.relative_to(TESTS)}: {line}" for path, line in lines if imports.match(line)] == []
