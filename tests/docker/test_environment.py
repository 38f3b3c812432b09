"""A private model of the hub, behind a proxy with a password and certificates of its own: fetched by the run in a container,
and neither token nor password is in any file.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.launch.compose_project import KEEP
from tests import hub_double, reports
from tests.docker.conftest import inspect_container
from tests.docker.launched_checkout import copy_checkout, inspect_trainer, remove_containers, run_command
from tests.messages import says
from tests.paths import ROOT

TOKEN, PASSWORD, OWN = (f"canary-{word}-7d20c5e1f9" for word in ("token", "password", "own"))
NAME = f"drivetrain-test/net-{os.getpid()}"
JOB = """
name: private
task: text-classification
data: {{train: {data}, text: descripcion, labels: {{modo: 1.0}}}}
model: {{source: transformers, name: {name}}}
train: {{epochs: 1, batch_size: 16}}
optimize: {{measure: off}}
environment: [MY_API_KEY]
"""


@pytest.fixture
def project(cpu_image: str, tmp_path: Path) -> Iterator[Path]:
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    folder = copy_checkout(tmp_path / "drivetrain")
    yield folder
    _in_cache(cpu_image, "rm", "-rf", f"/cache/huggingface/hub/models--{NAME.replace('/', '--')}")
    remove_containers(folder)


def _in_cache(image: str, *words: str) -> str:
    """A command on the volume of the hub's files."""
    volume = f"drivetrain_huggingface_{os.getuid() or 1000}"
    line = ["docker", "run", "--rm", "--network", "none", "--user", "0", "-v", f"{volume}:/cache/huggingface"]
    line += ["--entrypoint", words[0], image, *words[1:]]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout


def _gateway() -> str:
    """The address of this host as containers see it."""
    line = ["docker", "network", "inspect", "bridge", "--format", "{{json (index .IPAM.Config 0)}}"]
    subnet = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    # Some engines list the gateway only after a restart; it is the first address.
    return str(subnet.get("Gateway") or next(ipaddress.ip_network(subnet["Subnet"]).hosts()))


def _read_written_files(container: str) -> bytes:
    """What a container wrote outside of its mounts: all files of the engine's difference to the image."""
    lines = subprocess.run(
        ["docker", "diff", container], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    # Where something is mounted, an empty file or folder is made; `init: true` mounts the last one.
    mounts = {*(mount["Destination"] for mount in inspect_container(container)["Mounts"]), "/usr/sbin/docker-init"}
    paths = [line[3:] for line in lines if line[0] in "AC" and line[2:] not in mounts]
    inside = [*paths, *(path.lstrip("/") for path in mounts)]
    deepest = [path for path in paths if not any(other.startswith(f"{path}/") for other in inside)]
    if not deepest:
        return b""
    # `docker cp` would mount what the container had mounted, and its secrets are gone.
    line = ["tar", "--extract", "--to-stdout", *deepest]
    with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as export:
        return subprocess.run(line, stdin=export.stdout, capture_output=True, check=True).stdout


def _leaks(text: bytes) -> list[str]:
    return [value for value in (TOKEN, PASSWORD, OWN) if value.encode() in text]


@pytest.mark.nightly
def test_a_private_model_behind_a_proxy_with_its_own_certificates(
    project: Path, cpu_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, rooms = reports.write_reports(project / "mine"), tmp_path / "rooms"
    rooms.mkdir(mode=0o700)
    (project / "mine" / "job.yaml").write_text(JOB.format(data=data.name, name=NAME))
    monkeypatch.setenv(KEEP, "1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(rooms))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("MY_API_KEY", OWN)
    with hub_double.run_proxy(tmp_path / "hub", NAME, reports.save_encoder(tmp_path), TOKEN, PASSWORD) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("PIP_CERT", str(hub.authority))
        monkeypatch.setenv("https_proxy", f"http://someone:{PASSWORD}@{_gateway()}:{hub.port}")
        done = run_command(project, "launch", "mine/job.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"GET /{NAME}/resolve/{hub_double.COMMIT}/config.json" in hub.requests
    assert says(done.stdout, "environment-my-api-key")
    assert says(done.stdout, "certificates-those-pip-cert", hub.authority)
    assert list(rooms.iterdir()) == [], "removed once the run has read them"

    settings = inspect_trainer(project, "private")
    log = subprocess.run(["docker", "logs", settings["Id"]], capture_output=True, check=True)
    files = [path for path in (project / "runs").rglob("*") if path.is_file()]
    assert len(files) > 10
    for where, text in {
        "output": (done.stdout + done.stderr).encode(),
        "log": log.stdout + log.stderr,
        "settings": json.dumps(settings).encode(),
        "container": _read_written_files(settings["Id"]),
        "image": subprocess.run(["docker", "inspect", cpu_image], capture_output=True, check=True).stdout,
        **{str(path): path.read_bytes() for path in files},
    }.items():
        assert _leaks(text) == [], where
    assert _in_cache(cpu_image, "grep", "-rlE", f"{TOKEN}|{PASSWORD}|{OWN}", "/cache/huggingface") == ""
    # The run had all of it: without the variable that it names it does not begin.
    monkeypatch.delenv("MY_API_KEY")
    refused = run_command(project, "launch", "mine/job.yaml", "--new")
    assert refused.returncode == 2
    assert says(refused.stderr, "environment-my-api-key-set", "job.yaml", 8, 1)


def test_the_search_would_find_it(cpu_image: str) -> None:
    assert _leaks(f"x{TOKEN}y".encode()) == [TOKEN]
    base = subprocess.run([ROOT / "scripts" / "env", "base"], capture_output=True, text=True, check=True).stdout.strip()
    line = ["docker", "run", "--detach", "--network", "none", base, "sh", "-c", f"echo {TOKEN} > /tmp/found"]
    container = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
    try:
        subprocess.run(["docker", "wait", container], capture_output=True, check=True)
        assert _leaks(_read_written_files(container)) == [TOKEN]
    finally:
        subprocess.run(["docker", "rm", "-f", container], capture_output=True, check=True)
    assert _in_cache(cpu_image, "echo", TOKEN).strip() == TOKEN
