"""macOS has bash 3.2, make 3.81 and BSD tools: scripts and Makefile use nothing that is newer, or only in GNU's tools.

Neither of the two is to be had on the machines that run these tests. So this is a list of what was found to break, a
run of the scripts with the tools that are missing on macOS taken away and the builtins of bash 4 switched off, and the
awk that macOS has, where it is installed (Debian: original-awk).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.messages import says
from tests.paths import ROOT

LINUX = {"engine", "start-engine", "base-image", "cgroup2-host"}
"""They install Debian's packages, start an engine or build a Debian system, which is never done on a Mac."""
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file() and path.name not in LINUX)
BREAKS = {
    r"\b(mapfile|readarray)\b": "bash 4: while read",
    r"\b(declare|local|typeset) -\w*[Ang]": "bash 4: associative arrays, name references",
    r"\$\{[A-Za-z_]\w*(\[[^]]*\])?(,|\^)": "bash 4: tr",
    r"\$\{[A-Za-z_]\w*@[A-Z]\}": "bash 4.4: printf %q",
    r"\|&|&>>": "bash 4: 2>&1",
    r"\bcoproc\b|\bwait -n\b|\[\[ -v\b": "bash 4",
    r"\$\{?(EPOCHSECONDS|EPOCHREALTIME|BASHPID)\b": "bash 4 and 5",
    r"\{\d+\.\.\d+\.\.\d+\}": "bash 4: steps in a range",
    r"(?<![\w-])(nproc|tac|realpath|setsid|numfmt|stdbuf|shuf)\b(?!=)": "GNU: getconf, python3",
    r"(?<![\w-])timeout \d": "GNU: python3",
    r"(?<![-\w])sha256sum (?!\))(?!>)[^;&|]*\S": "GNU: shasum -a 256 as another way",
    r"\bsed (-\w+ )*-\w*(i|r|z)": "GNU: another file; -E",
    r"\bsed\b.*\\[tn]\b.*/[pg]?'": "GNU: a real tabulator",
    r"\bstat -(c|-format)": "GNU: ls -ldn",
    r"\bdate (-d|--date|\+\S*%N)": "GNU: python3",
    r"\breadlink -f": "GNU: cd and pwd -P",
    r"\bmktemp\b.*(--\w|-t \S+\.X|-p )": "GNU: mktemp, mktemp -d",
    r"\bxargs (-\w+ )*(-\w*r|--no-run)": "GNU: an if",
    r"\bdf\b.*(--output|-B)": "GNU: df -Pk",
    r"\bgrep (-\w+ )*-\w*P": "GNU: grep -E",
    r"\bfind\b.*-(printf|regextype)": "GNU",
    r"\b(head|tail) -n -\d": "GNU: sed",
    r"\bcp (-\w+ )*(-a|--)": "GNU: cp -R",
    r"\binstall -D|\btruncate\b|\bsort -\w*V": "GNU",
    r"/proc/(meminfo|cpuinfo)": "Linux: getconf, sysctl, docker info",
}
"""By pattern: why it breaks there, and what does not."""
MISSING = ("nproc", "timeout", "sha256sum", "realpath", "setsid", "tac", "shuf", "numfmt", "stdbuf")


def code(path: Path) -> list[tuple[int, str]]:
    """The lines without comments and without the Python in them."""
    text = re.sub(r"<<'PYTHON'.*?\nPYTHON", lambda found: "\n" * found[0].count("\n"), path.read_text(), flags=re.S)
    return [(n, re.sub(r"(^|\s)#\s.*", "", line)) for n, line in enumerate(text.splitlines(), 1)]


def list_breaks(lines: list[tuple[int, str]]) -> list[str]:
    return [
        f"{n}: {line.strip()} ({reason})"
        for n, line in lines
        for pattern, reason in BREAKS.items()
        if re.search(pattern, line)
    ]


@pytest.mark.parametrize("path", [*SCRIPTS, ROOT / "Makefile"], ids=lambda path: path.name)
def test_nothing_that_macos_lacks(path: Path) -> None:
    # The two ways to a SHA-256 stand beside each other.
    assert (
        list_breaks(
            [(n, line) for n, line in code(path) if "sum=(sha256sum)" not in line and "-v sha256sum" not in line]
        )
        == []
    )


@pytest.mark.parametrize(
    "line",
    [
        "mapfile -t ended < <(docker ps)",
        "declare -A seen",
        "echo ${word,,}",
        "sed -i -e s/a/b/ .env",
        "uid=$(stat -c %u .)",
        "[[ $(nproc) -ge 2 ]]",
        "total=$(awk '/^MemTotal/ {print $2}' /proc/meminfo)",
        "free=$(df --output=avail -BG /)",
        "docker ps -q | xargs -r docker stop",
        "timeout 120 docker pull x",
        "mark=$(echo x | sha256sum -b)",
        "sed -nE 's/^([a-z]+):.*/  make \\1\\t/p' Makefile",
        "here=$(readlink -f .)",
    ],
)
def test_each_kind_is_found(line: str) -> None:
    assert list_breaks([(1, line)])


ENDS_EARLY = re.compile(r"(?<!\|)\|(?!\|)\s*(head\b|grep -\w*[qm]|awk [^|]*\bexit\b|sed [^|]*[;{ ]q\b)")


def test_no_reader_closes_a_pipe() -> None:
    """With pipefail a writer that has more to say ends the script with 141, depending on who is faster."""
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]
    assert len(scripts) > 15
    assert [
        f"{path.name}:{n}: {line.strip()}"
        for path in [*scripts, *(ROOT / ".ci").iterdir(), ROOT / ".github/actions/train/train"]
        for n, line in code(path)
        if ENDS_EARLY.search(line)
    ] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_an_array_that_may_be_empty_is_guarded(path: Path) -> None:
    """Before bash 4.4 `set -u` refuses "${name[@]}" of an empty array."""
    lines = code(path)
    empty = {name for _, line in lines for name in re.findall(r"\b(\w+)=\(\)", line)}
    unguarded_lines = [
        f"{n}: {line.strip()}"
        for n, line in lines
        for name in re.findall(r'(?<!\+)"\$\{(\w+)\[@\]\}"', line)
        if name in empty
    ]
    assert unguarded_lines == []


def test_one_modifier_for_a_variable_of_a_target() -> None:
    """make 3.81 took `train-cpu: override export JOB := x` for a rule, and made a target `export`."""
    rows = (ROOT / "Makefile").read_text().splitlines()
    assert [
        row for row in rows if re.match(r"[\w -]+: *(override|export|private) +(override|export|private)\b", row)
    ] == []


@pytest.fixture
def bare_environment(tmp_path: Path) -> dict[str, str]:
    """An environment without the tools that macOS lacks, and with builtins of bash 4 switched off."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for tool in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if tool.name not in (*MISSING, "docker") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    if (awk := shutil.which("original-awk")) is not None:
        (tools / "awk").unlink()
        (tools / "awk").symlink_to(awk)
    shasum = tools / "shasum"
    shasum.unlink(missing_ok=True)
    shasum.write_text(f'#!/bin/sh\n[ "$1 $2" = "-a 256" ] && shift 2\nexec {shutil.which("sha256sum")} "$@"\n')
    shasum.chmod(0o755)
    (tmp_path / "bash3").write_text("enable -n mapfile readarray\n")
    return {**os.environ, "PATH": str(tools), "BASH_ENV": str(tmp_path / "bash3")}


def test_scripts_run_without_those_tools(tmp_path: Path, bare_environment: dict[str, str]) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    (checkout / "docker").mkdir()
    shutil.copy2(ROOT / "docker" / "Dockerfile", checkout / "docker")

    def run(function: str) -> str:
        words = ["bash", "-c", f". scripts/common && {function}"]
        done = subprocess.run(words, cwd=checkout, env=bare_environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("torch_index").startswith("https://")
    assert run("architecture").strip() in ("amd64", "arm64")


def test_make_help_with_the_awk_of_macos(bare_environment: dict[str, str]) -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, env=bare_environment, capture_output=True, text=True, check=True)
    assert says(done.stdout, "make-train-cpu-train")
