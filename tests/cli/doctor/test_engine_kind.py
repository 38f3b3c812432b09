"""Unusual engines, and what the doctor says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drivetrain.cli.doctor import docker_engine
from drivetrain.cli.doctor.finding import Level
from tests.cli.doctor.machine_snapshot import snapshot
from tests.launch.engine_answers import ROOTFUL, ROOTLESS
from tests.paths import ROOT

DOCKER, PODMAN = ({"Server": {"Components": [{"Name": name}]}} for name in ("Engine", "Podman Engine"))
SNAP = ROOTFUL | {"DockerRootDir": "/var/snap/docker/common/var-lib-docker"}


@pytest.mark.parametrize(
    ("info", "version", "home", "level", "text", "fix"),
    [
        (ROOTLESS, DOCKER, ROOT, "warn", "cpus, memory, pids cannot be limited", "unified_cgroup_hierarchy=1"),
        (ROOTFUL | {"SecurityOptions": ["name=rootless"]}, DOCKER, ROOT, "ok", "files of runs are that user's", ""),
        (ROOTFUL | {"MemoryLimit": False}, DOCKER, ROOT, "warn", "cannot enforce memory", "cgroup controllers"),
        (ROOTFUL, PODMAN, ROOT, "warn", "Podman: jobs train in it", "apt-get install catatonit"),
        (SNAP, DOCKER, ROOT.parent, "ok", "a snap: data of a job must lie below", ""),
        (SNAP, DOCKER, Path("/nowhere"), "warn", f"the project is in {ROOT}", "move the project below /nowhere"),
        (ROOTFUL | {"SecurityOptions": ["name=selinux"]}, DOCKER, ROOT, "ok", "the project is relabelled", ""),
    ],
)
def test_an_unusual_engine(
    tmp_path: Path, info: dict[str, Any], version: dict[str, Any], home: Path, level: str, text: str, fix: str
) -> None:
    answers = {"docker info": json.dumps(info)}
    machine_snapshot = snapshot(tmp_path, "laptop", {}, answers=answers, environ={"HOME": str(home)})
    (finding,) = docker_engine.check_kind(machine_snapshot, version["Server"])
    assert finding.level is Level(level)
    assert text in finding.text
    assert fix in finding.fix


def test_an_ordinary_engine_needs_no_word(tmp_path: Path) -> None:
    for answers in ({"docker info": json.dumps(ROOTFUL)}, {}, {"docker info": "nonsense"}):
        assert list(docker_engine.check_kind(snapshot(tmp_path, "laptop", {}, answers=answers), DOCKER["Server"])) == []


def test_podman_counts_its_versions_in_another_way(tmp_path: Path) -> None:
    version = json.dumps({"Server": {"Version": "4.3.1", **PODMAN["Server"]}})
    answers = {"docker version": version, "docker info": json.dumps(ROOTFUL)}
    findings = [
        finding
        for finding in docker_engine.check(snapshot(tmp_path, "laptop", {}, answers=answers))
        if finding.name == "engine"
    ]
    assert [(finding.level, finding.text) for finding in findings] == [(Level.OK, "Podman 4.3.1")]


@pytest.mark.parametrize("listing", [None, "", "runs"], ids=["no folder", "empty", "another"])
def test_an_engine_that_does_not_see_the_project(tmp_path: Path, listing: str | None) -> None:
    """Doctor said 16 times ok."""
    findings = list(docker_engine.check(snapshot(tmp_path, "laptop", {}, answers={"docker run": listing})))
    assert [finding.name for finding in findings if finding.level is Level.FAIL] == ["project"]
