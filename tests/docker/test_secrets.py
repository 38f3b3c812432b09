"""A secret that a build is given is in no layer, no history and no setting of the image; nor what compose hands over."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.docker.clone import project
from tests.paths import ROOT

__all__ = ["project"]
CANARY = b"canary-3b8e17d04a9c52f6"
CHUNK = 1 << 22


def holds(image: str) -> list[str]:
    """Where the canary is: in history, settings, or files of layers."""
    places = [
        word
        for word, line in (
            ("history", ["docker", "history", "--no-trunc", image]),
            ("settings", ["docker", "inspect", image]),
        )
        if CANARY in subprocess.run(line, capture_output=True, check=True).stdout
    ]
    layers = 0
    with (
        subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as export,
        tarfile.open(fileobj=export.stdout, mode="r|") as outer,
    ):
        for layer in outer:
            stream = outer.extractfile(layer)
            if stream is None:
                continue
            layers += layer.name.endswith("layer.tar") or "blobs/" in layer.name
            tail = b""
            while chunk := stream.read(CHUNK):  # layers are tars that are not compressed
                places += [layer.name] * (CANARY in tail + chunk)
                tail = chunk[-len(CANARY) :]
    assert export.returncode == 0
    assert layers > 3
    return sorted(set(places))


@pytest.mark.nightly
def test_no_layer_holds_the_secret_of_a_build(cpu_image: str, tmp_path: Path) -> None:
    """Every step is done anew, with the canary behind the certificates that it is given."""
    certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    authority = tmp_path / "ca.pem"
    authority.write_bytes(
        (Path(certificates).read_bytes() if certificates else Path("/etc/ssl/certs/ca-certificates.crt").read_bytes())
        + b"\n# "
        + CANARY
        + b"\n"
    )
    base = subprocess.run([ROOT / "scripts" / "env", "base"], capture_output=True, text=True, check=True).stdout.strip()
    tag = f"localhost/drivetrain/canary:{os.getpid()}"
    line = [
        "docker",
        "buildx",
        "build",
        "--load",
        "--no-cache-filter",
        "torch,wheels,openmp,image",
        "--file",
        "docker/Dockerfile",
        "--build-arg",
        "DEVICE=cpu",
        "--build-arg",
        f"BASE_IMAGE={base}",
        "--secret",
        f"id=ca,src={authority}",
        "--tag",
        tag,
        ".",
    ]
    environment = {**os.environ, "HF_TOKEN": CANARY.decode(), "DATABASE_PASSWORD": CANARY.decode()}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=590)
    try:
        assert done.returncode == 0, done.stderr[-3000:]
        assert CANARY.decode() not in done.stdout + done.stderr
        assert holds(tag) == []
    finally:
        subprocess.run(["docker", "rmi", "-f", tag], capture_output=True, check=False)


@pytest.mark.nightly
def test_the_search_would_find_it(cpu_image: str, tmp_path: Path) -> None:
    """Without this the test above would prove nothing."""
    (tmp_path / "Dockerfile").write_text(f"FROM {cpu_image}\nENV A={CANARY.decode()}\nCOPY secret /opt/secret\n")
    (tmp_path / "secret").write_bytes(b"x" * CHUNK + CANARY)
    tag = f"localhost/drivetrain/canary-found:{os.getpid()}"
    subprocess.run(["docker", "build", "--tag", tag, "."], cwd=tmp_path, capture_output=True, check=True)
    try:
        assert len(holds(tag)) >= 3
    finally:
        subprocess.run(["docker", "rmi", "-f", tag], capture_output=True, check=False)


def test_compose_hands_no_variable_over_that_it_does_not_name(project: Path) -> None:
    """What the host's environment holds does not come into a container."""
    environment = {**os.environ, "HF_TOKEN": CANARY.decode(), "AWS_SECRET_ACCESS_KEY": CANARY.decode()}
    with (project / ".env").open("a") as file:
        file.write(f"DATABASE_PASSWORD={CANARY.decode()}\n")
    compose_config = subprocess.run(
        ["docker", "compose", "config", "--format", "json"],
        cwd=project,
        env=environment,
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    for name, service in json.loads(compose_config)["services"].items():
        assert CANARY.decode() not in json.dumps(service.get("environment", {})), name
    look = ["docker", "compose", "run", "--rm", "-T", "--no-deps", "--entrypoint", "env", "trainer"]
    done = subprocess.run(
        look,
        cwd=project,
        env={**environment, "COMPOSE_PROJECT_NAME": f"drivetrain-secret-{os.getpid()}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "DRIVETRAIN_IMAGE=cpu" in done.stdout
    assert CANARY.decode() not in done.stdout
