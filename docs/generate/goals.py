"""The size of what a person has to hold in mind, counted: python -m docs.generate.goals [--names]."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from drivetrain.cli.arguments import list_commands, list_options, make_parser
from drivetrain.system import run_files

ROOT = Path(__file__).resolve().parents[2]
SET_BY_PROGRAMS = (
    *("DRIVETRAIN_UID", "DRIVETRAIN_GID", "DRIVETRAIN_TAG", "DRIVETRAIN_REWRITE_MESSAGES"),
    *("DRIVETRAIN_PROJECT", "DRIVETRAIN_USERNS", "DRIVETRAIN_GPU_DRIVER"),
)
CHILDREN = re.compile(r"^runtime/drivetrain/(?!__main__|launch|cli).*")
"""Modules that run as processes of their own, without the command line and the steps of building an image."""


def list_files(*patterns: str) -> list[Path]:
    """List the tracked files that fit the patterns of git."""
    output = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in output.stdout.splitlines() if (ROOT / name).is_file()]


def count_lines(files: list[Path]) -> int:
    """Count the lines of text files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def find_words(pattern: str, files: list[Path]) -> list[str]:
    """Find the distinct matches of a pattern in files."""
    return sorted({word for path in files for word in re.findall(pattern, path.read_text(encoding="utf-8"), re.M)})


def list_run_names() -> list[str]:
    """List the names that a run folder can hold."""
    constants = {name: value for name, value in vars(run_files).items() if name.endswith("_FILE")}
    files = [value for name, value in constants.items() if name != "SWEEP_FILE"]
    folders = ["job", "tensorboard", run_files.CHECKPOINTS, run_files.MODEL, run_files.RANKS]
    return sorted({*files, *folders, *run_files.REPORT_FILES})


def main() -> None:
    """Print a row for each goal; with --names the names that were counted, too."""
    commands = list_commands(make_parser())
    options = [f"{name} {option}" for name, command in commands.items() for option in list_options(command)]
    options = [option for option in options if not option.endswith("--help")]
    package, docs = list_files("runtime/*.py"), list_files("docs/*.md")
    pages = [page for page in docs if page.parent == ROOT / "docs"]
    shown = [*pages, *list_files("README.md", "compose.yaml", "compose/*")]
    variables = [name for name in find_words("DRIVETRAIN_[A-Z_]+", shown) if name not in SET_BY_PROGRAMS]
    programs = [str(path.relative_to(ROOT)) for path in package if '__name__ == "__main__"' in path.read_text()]
    processes = ["supervisor", "loader worker", *filter(CHILDREN.match, programs)]
    targets = find_words(r"^([a-z][a-z0-9-]*):(?!=)", [ROOT / "Makefile"])
    rows: list[tuple[str, int, int, list[str]]] = [
        ("package: lines", count_lines(package), 56_000, []),
        ("package: files", len(package), 400, []),
        ("tests: lines", count_lines(list_files("tests/*.py")), 56_000, []),
        ("commands", len(commands), 19, list(commands)),
        ("options over all commands", len(options), 60, options),
        ("environment variables", len(variables), 14, variables),
        ("names in a run folder", len(list_run_names()), 17, list_run_names()),
        ("kinds of processes", len(processes), 7, processes),
        ("scripts", len(list_files("scripts/*")), 18, []),
        ("targets of make", len(targets), 20, targets),
        ("benchmarks: lines", count_lines(list_files("benchmarks/*.py")), 4_200, []),
        ("docs: words", sum(len(page.read_text(encoding="utf-8").split()) for page in pages), 22_000, []),
        ("pages of measurements", len(list_files("docs/measurements/*.md")), 8, []),
    ]
    for name, count, goal, names in rows:
        print(f"{name:28}{count:8,}  goal {goal:7,}{'' if count <= goal else '  over'}")
        if "--names" in sys.argv:
            print(*(f"    {text}" for text in names), sep="\n")


if __name__ == "__main__":
    main()
