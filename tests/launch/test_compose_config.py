"""What compose makes of our files: overlays, GPUs, networks, names and tags."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from drivetrain.launch import project, run_secrets
from tests.nvml_double import GIB
from tests.paths import ROOT


def has_compose() -> bool:
    """Whether there is a docker client with the plugin."""
    return (
        bool(shutil.which("docker"))
        and not subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    )


pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(not has_compose(), reason="no docker client with compose is installed: `make engine`"),
]


def read_configuration(word: str, environment: dict[str, str]) -> dict[str, Any]:
    """What compose makes of the files of an image."""
    files = ["--file", "compose/base.yaml", "--file", f"compose/{word}.yaml"]
    command = ["docker", "compose", "-p", "a", "--env-file", "/dev/null", "--project-directory", ".", *files]
    done = subprocess.run(
        [*command, "config", "--format", "json"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/tmp", "DRIVETRAIN_TAG": "mine", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    configuration: dict[str, Any] = json.loads(done.stdout)
    return configuration


@pytest.mark.parametrize("word", ["cpu", "ampere", "legacy"])
def test_an_overlay_holds_only_the_difference(word: str) -> None:
    assert read_configuration(word, {"DRIVETRAIN_TAG": ""})["services"]["trainer"]["image"].endswith(":compose")
    services = read_configuration(word, {"DRIVETRAIN_GPU_CPUS": "15", "DRIVETRAIN_GPU_MEMORY": "8g"})["services"]
    trainer, resources = services["trainer"], services["trainer"]["deploy"]["resources"]
    assert {service["image"] for service in services.values()} == {f"localhost/drivetrain/{word}:mine"}
    assert (trainer["cap_drop"], trainer["read_only"], trainer["init"]) == (["ALL"], True, True)
    devices = resources.get("reservations", {}).get("devices", [])
    if word == "cpu":
        assert devices == []
        return
    assert devices == [{"capabilities": ["gpu"], "driver": "nvidia", "device_ids": ["all"]}]
    assert (resources["limits"]["cpus"], resources["limits"]["memory"]) == (15, str(8 * GIB))
    assert resources["limits"]["pids"] >= 1024
    assert trainer["memswap_limit"] == str(8 * GIB)
    assert "deploy" not in services["prepare"]


def test_no_gpu_by_default() -> None:
    text = (ROOT / "compose.yaml").read_text() + (ROOT / "compose/base.yaml").read_text()
    assert not [word for word in ("ampere", "legacy", "nvidia", "devices") if word in text]


def test_no_network_is_made() -> None:
    """An engine has room for about thirty; a job has none, or the engine's own."""
    for network, expected in ((None, "none"), ("bridge", "bridge")):
        configuration = read_configuration("cpu", {"DRIVETRAIN_NETWORK": network} if network else {})
        assert configuration["services"]["trainer"]["network_mode"] == expected
        assert not any(configuration.get("networks", {}).values())


def test_tensorboard_reaches_nothing_and_is_reached() -> None:
    """It reads runs of code that is not trusted, and needs no way out."""
    configuration = read_configuration("cpu", {"COMPOSE_PROFILES": "tensorboard"})
    service = configuration["services"]["tensorboard"]
    assert [port["host_ip"] for port in service["ports"]] == ["127.0.0.1"]
    assert (list(service["networks"]), service["dns"]) == (["viewer"], ["127.0.0.1"])
    options = configuration["networks"]["viewer"]["driver_opts"]
    assert options == {"com.docker.network.bridge.enable_ip_masquerade": "false"}


def test_no_service_gets_the_proxies_of_dockers_client() -> None:
    """They may hold a password, and TensorBoard's health check asked them for 127.0.0.1."""
    names = {*run_secrets.PROXIES, "FTP_PROXY", "ftp_proxy"}
    services = read_configuration("cpu", {"COMPOSE_PROFILES": "tensorboard"})["services"]
    for name, service in services.items():
        assert {key for key, value in service["environment"].items() if value == ""} >= names, name


@pytest.mark.parametrize("word", ["cpu", "ampere", "legacy"])
def test_no_registry_is_asked_for_our_images(word: str) -> None:
    """`drivetrain/cpu` belongs to whoever registers that name; `localhost/` is this machine, and nothing is pulled."""
    text = (ROOT / "compose" / f"{word}.yaml").read_text()
    assert f'image: "localhost/drivetrain/{word}:' in text
    assert project.image_name(word).startswith("localhost/")
    assert "pull_policy: never" in text
    if not (ROOT / ".git").exists():
        return
    tracked = subprocess.run(
        ["git", "grep", "-nE", r"(^|[^a-z./-])drivetrain/(cpu|ampere|legacy|base|\$|\{)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    allowed = (
        "docker/sbom.py",
        "runtime/drivetrain/distributed/store.py",
        "runtime/drivetrain/pretrained/hub_client.py",
        "tests/launch/test_compose_config.py",
    )  # no image, keys of a store, the name that servers are told, and this line
    assert [line for line in tracked if not line.startswith(allowed)] == []


def test_containers_are_named_by_user_and_checkout(tmp_path: Path) -> None:
    """Two users in folders of the same name, and two checkouts of one user, took each other's containers."""
    names = {project.container_prefix(tmp_path / folder, uid) for folder in ("a", "b") for uid in (1000, 1001)}
    assert len(names) == 4
    assert all(re.fullmatch(r"drivetrain-[0-9a-f]{8}", name) for name in names)
    done = subprocess.run([ROOT / "scripts" / "env", "project"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == project.container_prefix()


def test_images_are_tagged_by_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All checkouts shared `latest`: each trained with the code of the image that was built last."""
    monkeypatch.delenv(project.TAG, raising=False)
    assert project.image_tag(tmp_path / "a") != project.image_tag(tmp_path / "b")
    line = [str(ROOT / "scripts" / "env"), "image", "ampere"]
    for tag in ("", "mine"):
        monkeypatch.setenv(project.TAG, tag)
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == project.image_name("ampere")
    assert project.image_name("cpu") == "localhost/drivetrain/cpu:mine"
