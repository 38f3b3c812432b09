"""Steps that no rule covers: (file, what must stand there, what replaces it). `re:` begins a regular expression.

RUNTIME, PATHS and TESTS run after the files have moved and the names in them have been rewritten: paths are the new ones.
"""

HOMES = """\\
_HOMES = {
    "train": "supervisor.embedded", "Result": "supervisor.embedded",
    "facts_here": "api", "plan_for": "api", "memory_for": "api",
    "Monitor": "tracking.monitor",
}  # fmt: skip
"""

OWN_FOLDER = {"runtime/doctor/surroundings.py"}
"""Files whose `Path(__file__).parent` means their own folder, wherever that is."""

RUNTIME = [
    # Names put together at run time.
    ("runtime/__init__.py", 're:^_HOMES = \\{\n    "train": "library", "Result": "library", "facts_here": "alone", "plan_for": "alone", "memory_for": "alone",\n'
                            '    "Monitor": "monitor",\n\\}  # fmt: skip\n', HOMES.replace("\\\n", "")),
    ("runtime/data/sample_data/write.py", 'KINDS = {"images": "images", "texts": "texts", "series": "series", "table": "tables"}',
                                          'KINDS = {"images": "images", "texts": "text", "series": "series", "table": "tables"}'),
    ("runtime/data/sample_data/write.py", 'import_module(f"{__name__}.', 'import_module(f"{__package__}.'),
    # Tools.
    ("pyproject.toml", 'drivetrain = "runtime.cli.main:main"', 'drivetrain = "runtime.cli.main:main"'),
    ("pyproject.toml", 'files = ["runtime"]', 'files = ["runtime", "docs/generate"]'),
    ("Makefile", "$(python) -m ruff format -q runtime tests && $(python) -m ruff check -q --fix runtime tests",
                 "$(python) -m ruff format -q runtime tests docs/generate && $(python) -m ruff check -q --fix runtime tests docs/generate"),
    ("scripts/check", "format --check --quiet runtime tests\n", "format --check --quiet runtime tests docs/generate\n"),
    ("scripts/check", "check --quiet runtime tests\n\"$bin/mypy\"", "check --quiet runtime tests docs/generate\n\"$bin/mypy\""),
    # A line of the list for each name: the formatter's way.
    ("tests/test_imports.py", r're:^(LIGHT = \[[^\]]*\])  # fmt: skip$', r"\1"),
    # Pages.
    ("README.md", "(`hardware.py`, read by `detect.py`)", "(`hardware/facts.py`, read by `hardware/detect.py`)"),
    ("README.md", "and `plan.py`)", "and `plan/plan.py`)"),
    ("README.md", "(`run.py`, `step.py`, `loop.py`)", "(`run.py`, `step.py`, `loop.py` in `training/`)"),
]

PATHS = [
    ("tests/test_promises.py", "from tests.paths import TESTS\n", "from tests.paths import ROOT, TESTS\n"),
    ("tests/test_promises.py", "ROOT = TESTS.parent\n", ""),
]

TESTS = [
    ("tests/conftest.py", '_group(item) != "images"', '_group(item) != "docker"'),
    ("tests/conftest.py", 'return "images" if path.parts[0] == "images" else', 'return "docker" if path.parts[0] == "docker" else'),
    ("Makefile", "tests/faults tests/images tests/job $(ARGS)", "tests/faults tests/docker tests/job_spec $(ARGS)"),
    ("scripts/test-in-image", "--ignore tests/images ", "--ignore tests/docker "),
    ("tests/supervisor/test_embedded.py", 'startswith("test_library.py:")', 'startswith("test_embedded.py:")'),
]
REWRAP = [("README.md", "`runtime/cli/main.py` reads like that line.", 118)]
"""(file, how a paragraph begins, width)"""

MESSAGE_RUNTIME = """Move: one folder for each word of the story

Files move and imports follow, nothing else: `git log --follow` and `git blame` go through it. The code below an import
keeps the name that it knows (`from runtime.models.networks import user_network as own`); the names go one by one later.
What is started with `-m`, counted from a file's place or named in a text follows as well.
"""
MESSAGE_PATHS = """Tests: where things lie stands in tests/paths, once

Some forty files counted the parents of their own path; they move next.
"""
MESSAGE_TESTS = """Move the tests: one folder for each package, as in runtime/

Files move and imports follow, nothing else. tests/images, which is about Docker images, is tests/docker: tests/data/images
is about pictures.
"""
MESSAGE_IGNORE = """Blame passes the moves over

`git config blame.ignoreRevsFile .git-blame-ignore-revs`; GitHub reads it by itself.
"""
IGNORE_HEAD = """# Commits that moved files and rewrote imports, no more: git config blame.ignoreRevsFile .git-blame-ignore-revs
"""
