"""Where things lie: the project, the tests, and what they have recorded."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
SOURCE = ROOT / "runtime"
"""The source root: the folder of the package."""
PACKAGE = SOURCE / "drivetrain"
IMPORTS = f"{SOURCE}:{ROOT}"
"""PYTHONPATH of a program that imports the package and helpers of the tests, from any folder."""
DOCS = ROOT / "docs"
GOLDEN = TESTS / "golden"
MACHINES = TESTS / "machines"
TREES = TESTS / "trees"
TRACES = TESTS / "traces"
