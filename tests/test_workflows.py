"""The workflows of the forge: their steps are this project's scripts, and nothing they use can change unseen."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = (ROOT / "scripts" / "release").read_text()


def steps(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in yaml.safe_load(path.read_text())["jobs"].items():
        for step in job["steps"]:
            yield name, step


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_step_is_a_script_that_exists(path: Path) -> None:
    """So that it can be run on any machine."""
    for name, step in steps(path):
        if "run" not in step:
            continue
        script, *words = step["run"].split()
        assert (ROOT / script).stat().st_mode & 0o100, f"{name}: {script}"
        if script == "scripts/release":
            assert re.search(rf"^    {words[0]}\)", RELEASE, re.MULTILINE), f"{name}: {words[0]}"
        assert "${{" not in step["run"], f"{name}: an expression in a shell line is code of whoever names the branch"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = [line.strip() for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    for line in used:
        assert re.fullmatch(r"(- )?uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_may_only_read_unless_they_publish(path: Path) -> None:
    whole = yaml.safe_load(path.read_text())
    assert whole["permissions"] == {"contents": "read"}
    writers = {name for name, job in whole["jobs"].items() if "write" in (job.get("permissions") or {}).values()}
    assert writers == ({"image", "publish", "wheel"} if path.stem == "release" else set())


def test_the_changelog_has_the_version() -> None:
    """`release check` refuses another tag, and one without a section about it."""
    version = yaml.safe_load(
        subprocess.run(
            ["sed", "-n", 's/^VERSION = "\\(.*\\)"$/"\\1"/p', "runtime/system/version.py"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )

    def check(tag: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([ROOT / "scripts" / "release", "check", tag], capture_output=True, text=True, check=False)

    assert check(f"v{version}").stdout == f"release: {version}\n"
    refused = check("v99.0.0")
    assert refused.returncode == 2
    assert refused.stderr.startswith("the tag is v99.0.0\n  possible: v")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://user:secret@github.com/Own/tool.git", "https://github.com/Own/tool"),
        ("git@github.com:Own/tool.git", "https://github.com/Own/tool"),
        ("ssh://git@github.com/Own/tool.git", "https://github.com/Own/tool"),
        ("/srv/tool.git", ""),
    ],
)
def test_the_source_of_an_image_holds_no_password(address: str, shown: str) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "source"],
        env={"DRIVETRAIN_SOURCE": address, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == shown
