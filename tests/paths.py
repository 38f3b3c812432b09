"""Where things lie: the project, the tests, and what they have recorded."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
DOCS = ROOT / "docs"
MACHINES = TESTS / "machines"
TREES = TESTS / "trees"
TRACES = TESTS / "traces"
