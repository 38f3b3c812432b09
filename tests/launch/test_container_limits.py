"""The share of the host that a container gets, and whose files it writes."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.launch import container_limits, env_file
from drivetrain.launch.compose_project import read_trainer
from drivetrain.launch.container_limits import find_zone
from drivetrain.launch.env_file import default_cpus
from drivetrain.launch.project import TAG, container_prefix, image_tag
from drivetrain.training.forecast import describe_forecast
from tests.launch.specs import HOST, check_job
from tests.nvml_double import GIB


@pytest.mark.parametrize(
    ("limits", "gpu", "expected"),
    [
        (
            "{}",
            False,
            {"DRIVETRAIN_CPUS": "15", "DRIVETRAIN_MEMORY": f"{60 * 1024}m"},
        ),
        (
            "{cpus: 64}",
            False,
            {"DRIVETRAIN_CPUS": "16", "DRIVETRAIN_MEMORY": f"{60 * 1024}m"},
        ),
        (
            "{memory: 512m, shm: 1g}",
            False,
            {
                "DRIVETRAIN_CPUS": "15",
                "DRIVETRAIN_MEMORY": "512m",
                "DRIVETRAIN_SHM": "1g",
            },
        ),
        (
            "{}",
            True,
            {"DRIVETRAIN_GPU_CPUS": "15", "DRIVETRAIN_GPU_MEMORY": f"{62 * 1024}m"},
        ),
        (
            "{cpus: 4, memory: 8g}",
            True,
            {"DRIVETRAIN_GPU_CPUS": "4", "DRIVETRAIN_GPU_MEMORY": "8g"},
        ),
    ],
)
def test_the_share_of_the_host(limits: str, gpu: bool, expected: dict[str, str]) -> None:
    assert container_limits.variables(HOST, check_job(limits), gpu=gpu) == expected


@pytest.fixture(autouse=True)
def no_env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the checkout has the limits of the machine that the tests run on."""
    monkeypatch.setattr(container_limits, "PROJECT", tmp_path)
    monkeypatch.setattr(container_limits, "find_zone", lambda: "")
    for name in (TAG, "TZ", "DRIVETRAIN_CPUS", "DRIVETRAIN_MEMORY", "DRIVETRAIN_GPU_CPUS", "DRIVETRAIN_GPU_MEMORY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("cpus", "memory", "expected_cpus", "expected_mib"),
    [(2, 4, "2", 4096), (2, 8, "2", 4096), (8, 16, "7", 12288), (64, 256, "63", 252 * 1024), (1, 2, "1", 4096)],
    ids=["small codespace", "codespace", "laptop", "server", "one CPU"],
)
def test_a_job_without_limits_gets_the_host_less_a_reserve(
    cpus: int, memory: int, expected_cpus: str, expected_mib: int
) -> None:
    variables = container_limits.variables({"NCPU": cpus, "MemTotal": memory * GIB}, check_job())
    assert (variables["DRIVETRAIN_CPUS"], variables["DRIVETRAIN_MEMORY"]) == (expected_cpus, f"{expected_mib}m")


def test_the_time_zone_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forecast of a container was in UTC, which it did not say."""
    link = tmp_path / "localtime"
    link.symlink_to("/usr/share/zoneinfo/America/New_York")
    zones = [find_zone(link), find_zone(tmp_path / "none")]
    assert zones == ["America/New_York", ""]
    for setting, zone, expected in (("", zones[0], zones[0]), ("Asia/Tokyo", zones[0], "Asia/Tokyo"), ("", "", None)):
        monkeypatch.setenv("TZ", setting)
        monkeypatch.setattr(container_limits, "find_zone", lambda zone=zone: zone)
        assert container_limits.variables(HOST, check_job()).get("TZ") == expected
    assert read_trainer({"TZ": "Asia/Tokyo"})["environment"]["TZ"] == "Asia/Tokyo"


def test_a_forecast_names_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody hands on a zone, it is in UTC."""
    forecast = {"seconds": 60.0, "low": 50.0, "high": 70.0}
    end = datetime(2026, 1, 1, 12, tzinfo=UTC)
    try:
        for zone, expected in (("UTC", "12:00:00 UTC"), ("Asia/Tokyo", "21:00:00 JST")):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert expected in describe_forecast(forecast, end, "")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_env_file_is_used_where_the_job_says_nothing(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("DRIVETRAIN_CPUS=3\nDRIVETRAIN_MEMORY=7g\n")
    variables = container_limits.variables(HOST, check_job())
    assert (variables["DRIVETRAIN_CPUS"], variables["DRIVETRAIN_MEMORY"]) == ("3", "7g")
    small = container_limits.variables({"NCPU": 2, "MemTotal": 8 * GIB}, check_job())
    assert small["DRIVETRAIN_CPUS"] == "2", "the host has shrunk since"
    variables = container_limits.variables(HOST, check_job("{cpus: 1, memory: 2g}"))
    assert (variables["DRIVETRAIN_CPUS"], variables["DRIVETRAIN_MEMORY"]) == ("1", "2g")


@pytest.mark.parametrize(
    ("info", "uid", "cpus"),
    [
        ({"NCPU": 8, "MemTotal": 16 * GIB}, None, "7"),
        ({"NCPU": 8, "MemTotal": 16 * GIB, "SecurityOptions": ["name=rootless"], "CPUCfsQuota": False}, "0", "0"),
        ({}, None, None),
    ],
    ids=["engine", "rootless", "no engine"],
)
def test_the_env_file_fits_compose_to_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info: dict[str, Any], uid: str | None, cpus: str | None
) -> None:
    """Names and tags of a copied checkout are renewed, as are owners of another kind of engine; all else stays."""
    own = dict(zip(("DRIVETRAIN_UID", "DRIVETRAIN_GID"), map(str, env_file.find_owner(tmp_path)), strict=True))
    stale = "DRIVETRAIN_UID=0" if uid is None else "DRIVETRAIN_UID=1234"
    (tmp_path / ".env").write_text(
        f"COMPOSE_PROJECT_NAME=drivetrain-old\n{stale}\nDRIVETRAIN_TAG=checkout-old\nDRIVETRAIN_MEMORY=7g\nMINE=a=b"
    )
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    added = env_file.write(info, "debian", tmp_path)
    written = container_limits.read_env_file()
    assert written.items() >= added.items()
    assert written["COMPOSE_PROJECT_NAME"] == container_prefix(tmp_path)
    assert written["DRIVETRAIN_TAG"] == image_tag(tmp_path)
    assert (written["MINE"], written["DRIVETRAIN_MEMORY"], written["BASE_IMAGE"]) == ("a=b", "7g", "debian")
    assert written["DRIVETRAIN_UID"] == (uid or (own["DRIVETRAIN_UID"] if info else "0"))
    assert written["DRIVETRAIN_CPUS"] == (cpus or f"{default_cpus(6, gpu=False):g}")
    assert env_file.write(info, "debian", tmp_path) == {}


@pytest.mark.parametrize(("output", "code"), [('{"NCPU": 0, "CPUCfsQuota": false}', 0), ("[]", 1)])
def test_an_engine_that_refuses_the_user_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, code: int
) -> None:
    """Newer clients print empty values before they fail, which read as an engine without CPU limits."""
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho '{output}'\necho permission denied >&2\nexit {code}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert env_file._ask_engine() == {}


def test_a_small_host_keeps_half_of_its_memory_and_its_only_cpu_is_shared() -> None:
    assert container_limits.variables({"NCPU": 1, "MemTotal": 3 * GIB}, check_job(), gpu=True) == {
        "DRIVETRAIN_GPU_CPUS": "1",
        "DRIVETRAIN_GPU_MEMORY": "1536m",
    }


def test_root_is_informed_once_about_the_owner_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    project: Any = SimpleNamespace(stat=lambda: SimpleNamespace(st_uid=0, st_gid=0))
    monkeypatch.setattr(container_limits, "_has_runs_of", lambda uid: False)
    container_limits.owner(project, report=True)
    assert "started by root" in capsys.readouterr().out
    container_limits.owner(project)
    assert capsys.readouterr().out == ""
    monkeypatch.undo()
    monkeypatch.setattr(container_limits, "RUNS", tmp_path / "runs")
    assert not container_limits._has_runs_of(os.getuid())
    (tmp_path / "runs" / "a-001").mkdir(parents=True)
    assert container_limits._has_runs_of(os.getuid())


@pytest.mark.parametrize(
    ("uid", "owner", "expected"),
    [
        (0, 0, "root (uid 0), because root owns the"),
        (54321, 54321, "uid 54321, which no account here has, the owner of this"),
    ],
)
def test_the_account_that_gets_the_files_of_root_is_named(uid: int, owner: int, expected: str) -> None:
    text = container_limits._about_owner(uid, Path("/srv/my drive"), is_owner=bool(owner))
    assert expected in text
    assert ("chown -R ACCOUNT: '/srv/my drive'" in text) == (owner == 0)
