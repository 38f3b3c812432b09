"""The share of the host that a container gets, and whose files it writes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.launch import container_limits
from tests.launch.specs import HOST, job
from tests.nvml_double import GIB


@pytest.mark.parametrize(
    ("limits", "gpu", "expected"),
    [
        ("{}", False, {"DRIVETRAIN_CPUS": "2"}),
        ("{cpus: 64}", False, {"DRIVETRAIN_CPUS": "16"}),
        (
            "{memory: 512m, shm: 1g}",
            False,
            {
                "DRIVETRAIN_CPUS": "2",
                "DRIVETRAIN_MEMORY": "512m",
                "DRIVETRAIN_RESERVATION": str(512 << 20),
                "DRIVETRAIN_SHM": "1g",
            },
        ),
        (
            "{}",
            True,
            {"DRIVETRAIN_GPU_CPUS": "15", "DRIVETRAIN_GPU_MEMORY": f"{62 * 1024}m", "DRIVETRAIN_RESERVATION": str(GIB)},
        ),
        (
            "{cpus: 4, memory: 8g}",
            True,
            {"DRIVETRAIN_GPU_CPUS": "4", "DRIVETRAIN_GPU_MEMORY": "8g", "DRIVETRAIN_RESERVATION": str(GIB)},
        ),
    ],
)
def test_the_share_of_the_host(limits: str, gpu: bool, expected: dict[str, str]) -> None:
    assert container_limits.variables(HOST, job(limits), gpu=gpu) == expected


def test_a_small_host_keeps_half_of_its_memory_and_its_only_cpu_is_shared() -> None:
    assert container_limits.variables({"NCPU": 1, "MemTotal": 3 * GIB}, job(), gpu=True) == {
        "DRIVETRAIN_GPU_CPUS": "1",
        "DRIVETRAIN_GPU_MEMORY": "1536m",
        "DRIVETRAIN_RESERVATION": str(GIB),
    }


def test_root_is_informed_once_about_the_owner_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    project: Any = SimpleNamespace(stat=lambda: SimpleNamespace(st_uid=0, st_gid=0))
    monkeypatch.setattr(container_limits, "_has_runs_of", lambda uid, project: False)
    container_limits.owner(project, report=True)
    assert "started by root" in capsys.readouterr().out
    container_limits.owner(project)
    assert capsys.readouterr().out == ""
    monkeypatch.undo()
    assert not container_limits._has_runs_of(os.getuid(), tmp_path)
    (tmp_path / "runs" / "a-001").mkdir(parents=True)
    assert container_limits._has_runs_of(os.getuid(), tmp_path)


@pytest.mark.parametrize(
    ("uid", "owner", "told"),
    [
        (0, 0, "root (uid 0), because root owns the"),
        (54321, 54321, "uid 54321, which no account here has, the owner of this"),
    ],
)
def test_the_account_that_gets_the_files_of_root_is_named(uid: int, owner: int, told: str) -> None:
    text = container_limits._about_owner(uid, Path("/srv/my drive"), is_owner=bool(owner))
    assert told in text
    assert ("chown -R ACCOUNT: '/srv/my drive'" in text) == (owner == 0)
