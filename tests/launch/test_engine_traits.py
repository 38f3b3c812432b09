"""Kinds of engines, from what they say of themselves, and what containers get there."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from drivetrain.launch import container, engine_traits
from drivetrain.launch.engine_traits import EngineTraits
from drivetrain.launch.run_secrets import RunSecrets
from tests.launch.engine_answers import ROOTFUL, ROOTLESS
from tests.messages import begins_with, says_only
from tests.paths import ROOT

NONE = ("cpus", "memory", "pids")


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, EngineTraits()),
        (ROOTFUL, EngineTraits(cgroup="1")),
        (ROOTLESS, EngineTraits(rootless=True, unenforced=NONE, cgroup="1")),
        (ROOTFUL | {"SecurityOptions": ["name=selinux"]}, EngineTraits(selinux=True, cgroup="1")),
        (ROOTFUL | {"SecurityOptions": None}, EngineTraits(cgroup="1")),
        (ROOTFUL | {"DockerRootDir": "/var/snap/docker/common/var-lib-docker"}, EngineTraits(snap=True, cgroup="1")),
        (ROOTFUL | {"OperatingSystem": "Docker Desktop"}, EngineTraits(desktop=True, cgroup="1")),
        ({"CPUCfsQuota": False}, EngineTraits(unenforced=("cpus",))),
    ],
)
def test_an_engine_is_recognized(info: dict[str, Any], expected: EngineTraits) -> None:
    assert engine_traits.find(info) == expected


def test_in_a_rootless_engine_root_is_the_user() -> None:
    engine = engine_traits.find(ROOTLESS)
    assert engine.owner() == {"DRIVETRAIN_UID": "0", "DRIVETRAIN_GID": "0"}
    assert engine.variables(gpu=False) == {"DRIVETRAIN_CPUS": "0"}, "a limit would be refused"
    assert engine.variables(gpu=True) == {"DRIVETRAIN_GPU_CPUS": "0"}
    assert says_only(engine.note(), "limits-engine-enforce-cpus", "systemd.unified_cgroup_hierarchy", 1)
    delegated = engine_traits.find(ROOTLESS | {"MemoryLimit": True, "PidsLimit": True, "CgroupVersion": "2"})
    assert begins_with(delegated.note(), "limits-engine-enforce-cpus-rootless")


def test_a_rootless_engine_has_what_systemd_delegates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on cgroup v2: engine 20.10 says that it has CPU limits, and then `--cpus` fails, for want of cpu.max."""
    claims = ROOTFUL | {"SecurityOptions": ["name=rootless"], "CgroupVersion": "2"}
    assert engine_traits.find(claims, {"memory", "pids"}).unenforced == ("cpus",)
    assert engine_traits.find(claims, {"cpu", "memory", "pids"}).unenforced == ()
    assert engine_traits.find(ROOTFUL, {"memory"}).unenforced == ("cpus", "pids")
    service = tmp_path / "user.slice/user-7.slice/user@7.service"
    service.mkdir(parents=True)
    (service / "cgroup.controllers").write_text("memory pids\n")
    assert engine_traits._read_delegated(7, tmp_path) == {"memory", "pids"}  # type: ignore[comparison-overlap]
    assert engine_traits._read_delegated(8, tmp_path) is None
    # Asked of this machine for an engine on it, and for no other.
    monkeypatch.setattr(engine_traits, "_read_delegated", lambda user: frozenset({"memory", "pids"}))
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    assert engine_traits.find(claims | {"Name": "here"}).unenforced == ("cpus",)
    assert engine_traits.find(claims | {"Name": "elsewhere"}).unenforced == ()


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("selinux", [True, False])
def test_data_outside_of_the_project_is_never_relabelled(tmp_path: Path, selinux: bool, outside: bool) -> None:
    engine = engine_traits.find(ROOTFUL | ({"SecurityOptions": ["name=selinux"]} if selinux else {}))
    data = {"type": "bind", "source": "/data", "target": "/data", "read_only": True, "bind": {}}
    trainer: dict[str, Any] = {"volumes": [data] * outside}
    container.add_secrets(trainer, RunSecrets({"KEY": b"v"}, tmp_path), engine)
    relabelled = [volume["target"] for volume in trainer["volumes"] if "selinux" in volume["bind"]]
    assert relabelled == ["/run/secrets/KEY"] * selinux
    assert trainer.get("security_opt") == (["label=disable"] if selinux and outside else None)


def test_an_engine_that_remaps_users_is_asked_for_those_of_the_host() -> None:
    """Uid 1000 was another one outside, which cannot write to runs/, and the advice named a uid that cannot help."""
    engine = engine_traits.find(ROOTFUL | {"SecurityOptions": ["name=seccomp,profile=default", "name=userns"]})
    assert engine.variables(gpu=False) == {"DRIVETRAIN_USERNS": "host"}
    services = yaml.safe_load((ROOT / "compose" / "base.yaml").read_text())["services"]
    assert {service["userns_mode"] for service in services.values()} == {"${DRIVETRAIN_USERNS:-}"}


def test_an_ordinary_engine_changes_nothing() -> None:
    engine = engine_traits.find(ROOTFUL)
    assert (engine.owner(), engine.variables(gpu=False), engine.note()) == ({}, {}, "")
