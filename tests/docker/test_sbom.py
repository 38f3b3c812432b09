"""The list of parts that an image carries names all that is in it, and nothing else."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from drivetrain.launch import project
from tests.docker.conftest import find_obstacle, has_client

PARTS = """
import json, re, subprocess, sys
from importlib import metadata
debian = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"], capture_output=True, text=True, check=True)
python = [re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower() + " " + d.version for d in metadata.distributions(path=[*sys.path, sys.prefix + "/lib/timm"])]
print(json.dumps([debian.stdout.split("\\n")[:-1], python]))
"""


@pytest.fixture(params=["cpu", "ampere", "legacy"])
def image(request: pytest.FixtureRequest) -> str:
    reason = find_obstacle(request.param) if has_client() else "no docker client is installed: `make engine`"
    if reason:
        pytest.skip(reason)
    return project.image_name(request.param)


def inside(image: str, *command: str) -> str:
    line = ["docker", "run", "--rm", "--network=none", "--read-only", "--entrypoint", command[0], image, *command[1:]]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    if "No such file" in done.stderr and "/cpu:" not in image:  # only a change of theirs builds them in CI
        pytest.skip(f"{image} is older than its list of parts: build it again")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_parts_are_listed(image: str) -> None:
    document: dict[str, Any] = json.loads(inside(image, "cat", "/opt/drivetrain/sbom.json"))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert document["metadata"]["component"]["name"] == image.removeprefix("localhost/").partition(":")[0]
    parts = document["components"]
    assert len({part["bom-ref"] for part in parts}) == len(parts)
    listed = {
        kind: {f"{p['name']} {p['version']}" for p in parts if p["purl"].startswith(f"pkg:{kind}/")}
        for kind in ("deb", "pypi")
    }
    debian, python = json.loads(inside(image, "python", "-c", PARTS))
    copied = {name for name in listed["pypi"] if name.startswith("intel-openmp ")}
    assert listed == {"deb": set(debian), "pypi": {*python, *copied}}
    assert bool(copied) == ("/cpu" in image)
    assert len(debian) > 80
    assert any(name.startswith("torch 2.") for name in python)
