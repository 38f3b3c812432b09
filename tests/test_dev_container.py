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
    made: dict[str, Any] = json.loads(text)
    return made


def test_the_settings_are_valid() -> None:
    made = settings()
    assert set(made) == KEYS
    assert (FOLDER / made["build"]["dockerfile"]).is_file()
    assert all(isinstance(made[name], str) for name in ("name", "remoteUser", "onCreateCommand", "postStartCommand"))
    user = made["remoteUser"]
    assert re.search(rf"useradd .*--groups docker .*{user}\b", (FOLDER / "Dockerfile").read_text())


def test_only_the_port_of_tensorboard_is_forwarded_and_nothing_opens_by_itself() -> None:
    made = settings()
    assert made["forwardPorts"] == [6006]
    assert "6006" in (ROOT / "compose" / "base.yaml").read_text()
    assert made["portsAttributes"]["6006"]["onAutoForward"] == "silent"
    assert made["otherPortsAttributes"] == {"onAutoForward": "ignore"}
    assert "public" not in json.dumps(made)


def test_its_commands_exist_and_install_torch_once() -> None:
    made = settings()
    lines = re.split(r"&&|;", f"{made['onCreateCommand']};{made['postStartCommand']}")
    for words in (line.removeprefix("sudo ").split() for line in map(str.strip, lines)):
        if words[0] == "make":
            asked = subprocess.run(
                ["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert asked.returncode == 0, asked.stderr
            assert "scripts/setup check" not in asked.stdout  # would put torch beside the image's
        else:
            assert os.access(ROOT / words[0], os.X_OK), words
