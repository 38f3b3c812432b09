"""The dev container's settings: valid, private, and every command in them exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

from tests.paths import ROOT

FOLDER = ROOT / ".devcontainer"
KEYS = {
    *("name", "build", "privileged", "mounts", "remoteUser", "hostRequirements", "forwardPorts", "portsAttributes"),
    *("otherPortsAttributes", "onCreateCommand", "postStartCommand"),
}
"""Those of the specification on containers.dev that are used here."""


def settings() -> dict[str, Any]:
    """The file without its comments, which the format allows on lines of their own."""
    text = re.sub(r"^\s*//.*$", "", (FOLDER / "devcontainer.json").read_text(), flags=re.MULTILINE)
    configuration: dict[str, Any] = json.loads(text)
    return configuration


def test_the_settings_are_valid() -> None:
    configuration = settings()
    assert set(configuration) == KEYS
    assert (FOLDER / configuration["build"]["dockerfile"]).is_file()
    assert all(
        isinstance(configuration[name], str) for name in ("name", "remoteUser", "onCreateCommand", "postStartCommand")
    )
    user = configuration["remoteUser"]
    assert re.search(rf"useradd .*--groups docker .*{user}\b", (FOLDER / "Dockerfile").read_text())


def test_only_the_port_of_tensorboard_is_forwarded_and_nothing_opens_by_itself() -> None:
    configuration = settings()
    assert configuration["forwardPorts"] == [6006]
    assert "6006" in (ROOT / "compose" / "base.yaml").read_text()
    assert configuration["portsAttributes"]["6006"]["onAutoForward"] == "silent"
    assert configuration["otherPortsAttributes"] == {"onAutoForward": "ignore"}
    assert "public" not in json.dumps(configuration)


def test_its_commands_exist_and_install_torch_once() -> None:
    configuration = settings()
    lines = re.split(r"&&|;", f"{configuration['onCreateCommand']};{configuration['postStartCommand']}")
    for command in (line.removeprefix("sudo ").split() for line in map(str.strip, lines)):
        if command[0] == "make":
            dry_run = subprocess.run(
                ["make", "--dry-run", *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert dry_run.returncode == 0, dry_run.stderr
            assert "scripts/setup check" not in dry_run.stdout  # would put torch beside the image's
        else:
            assert os.access(ROOT / command[0], os.X_OK), command
