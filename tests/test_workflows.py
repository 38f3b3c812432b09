"""The workflows of the forge: their steps are this project's scripts, and nothing they use can change unseen."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.messages import begins_with, says
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
        script, *arguments = step["run"].split()
        assert (ROOT / script).stat().st_mode & 0o100, f"{name}: {script}"
        if script == "scripts/release":
            assert re.search(rf"^    {arguments[0]}\)", RELEASE, re.MULTILINE), f"{name}: {arguments[0]}"
        assert "${{" not in step["run"], f"{name}: an expression in a shell line is code of whoever names the branch"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    uses = [line.strip() for line in path.read_text().splitlines() if "uses:" in line]
    assert uses
    for line in uses:
        assert re.fullmatch(r"(- )?uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_may_only_read_unless_they_publish(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    writers = {name for name, job in workflow["jobs"].items() if "write" in (job.get("permissions") or {}).values()}
    assert writers == ({"image", "publish", "wheel"} if path.stem == "release" else set())


DOUBLE = """#!/bin/bash
echo "$(basename "$0") $*" >>"$LOG"
case "$*" in
    *"inspect --raw"*"@$JOINED") echo '{"manifests": ['"$INSIDE"']}' ;;
    *"inspect --raw"*) echo '{"config": {}}' ;;
    *"inspect --format"*RepoDigests*) printf '%s\\n' "other/x@sha256:0" "r.example/a/drivetrain/cpu@$PUSHED" ;;
    *"inspect --format"*) echo contents ;;
    *"imagetools inspect"*) echo "Digest: $JOINED" ;;
    create*) echo container ;;
esac
"""


def run_release(folder: Path, *arguments: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """A step of the release with doubles of docker and cosign, and what these were asked."""
    for name in ("docker", "cosign"):
        (folder / name).write_text(DOUBLE)
        (folder / name).chmod(0o755)
    log = folder / "log"
    log.write_text("")
    surroundings = {"PATH": f"{folder}:{os.environ['PATH']}", "LOG": str(log), "DRIVETRAIN_REGISTRY": "r.example/a"}
    done = subprocess.run(
        [ROOT / "scripts" / "release", *arguments],
        env=surroundings | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, log.read_text().splitlines()


def test_what_was_tested_is_what_is_signed(tmp_path: Path) -> None:
    """Tags were asked again in each step, and anybody who may push there can move them."""
    name, (amd, arm, joined, other) = "r.example/a/drivetrain/cpu", (f"sha256:{letter * 64}" for letter in "1234")
    done, _ = run_release(tmp_path, "push", "cpu", "amd64", PUSHED=amd)
    assert done.stdout == f"cpu-amd64={amd}\n"
    digests = {"DIGEST_AMD64": amd, "DIGEST_ARM64": arm, "JOINED": joined}
    done, requests = run_release(tmp_path, "join", "cpu", **digests, INSIDE=f'"{amd}", "{arm}"')
    assert done.stdout == f"name={name}\ndigest={joined}\n", done.stderr
    assert any(line.endswith(f" {name}@{amd} {name}@{arm}") for line in requests if " create " in line)
    for inside in (f'"{amd}", "{other}"', f'"{amd}", "{arm}", "{other}"', f'"{amd}"'):
        done, _ = run_release(tmp_path, "join", "cpu", **digests, INSIDE=inside)
        assert (done.returncode != 0, done.stdout) == (True, "")
        assert says(done.stderr, "images-those-tested")
    done, requests = run_release(tmp_path, "sign", "cpu", **digests, DIGEST=joined)
    assert done.returncode == 0, done.stderr
    signed = [line.split()[-1] for line in requests if line.startswith("cosign")]
    assert signed == [f"{name}@{digest}" for digest in (joined, amd, arm)]


@pytest.mark.parametrize("step", ["join", "sign"])
def test_a_step_without_a_digest_is_refused(tmp_path: Path, step: str) -> None:
    done, requests = run_release(tmp_path, step, "cpu", DIGEST=f"sha256:{'3' * 64}", DIGEST_AMD64="latest")
    assert done.returncode == 2
    assert begins_with(done.stderr, "digest-amd64-latest-possible")
    assert not [line for line in requests if " create " in line or " attest " in line]


def test_the_workflow_hands_the_digests_on() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    builds = [f"{image['word']}-{image['arch']}" for image in jobs["image"]["strategy"]["matrix"]["include"]]
    assert jobs["image"]["outputs"] == {name: f"${{{{ steps.push.outputs.{name} }}}}" for name in builds}


def test_the_changelog_has_the_version() -> None:
    """`release check` refuses another tag, and one without a section about it."""
    version = yaml.safe_load(
        subprocess.run(
            ["sed", "-n", 's/^VERSION = "\\(.*\\)"$/"\\1"/p', "runtime/drivetrain/system/version.py"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )

    def check(tag: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([ROOT / "scripts" / "release", "check", tag], capture_output=True, text=True, check=False)

    assert check(f"v{version}").stdout == f"release: {version}\n"
    refusal = check("v99.0.0")
    assert refusal.returncode == 2
    assert refusal.stderr.startswith("the tag is v99.0.0\n  possible: v")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://user:secret@github.com/Own/tool.git", "https://github.com/Own/tool"),
        ("git@github.com:Own/tool.git", "https://github.com/Own/tool"),
        ("ssh://git@github.com/Own/tool.git", "https://github.com/Own/tool"),
        ("/srv/tool.git", ""),
    ],
)
def test_the_source_of_an_image_holds_no_password(address: str, expected: str) -> None:
    done = subprocess.run(
        ["bash", "-c", ". scripts/common && source_address"],
        cwd=ROOT,
        env={"DRIVETRAIN_SOURCE": address, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


def test_every_command_that_verifies_names_the_release_workflow() -> None:
    """A pattern of the repository alone accepted what any workflow of it has signed."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^    ((?:cosign|gh attestation) verify.*)$", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert ".github/workflows/release.yml" in command
