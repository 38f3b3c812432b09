"""Published images, with a real registry on this machine: what is pulled, what is not, and what an installed program runs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.launch import docker_engine, image_contents, project, published_image
from drivetrain.system.version import VERSION
from tests import installed_wheel
from tests.messages import ends_with, get_message, says, says_each, says_only

CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def registry(cpu_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A registry that the variable names; the engine takes one on the loopback interface without a certificate."""
    program = os.environ.get("DRIVETRAIN_TEST_REGISTRY") or shutil.which("docker-registry")
    if program is None:
        pytest.skip("no registry is installed: apt-get install docker-registry")
    port = free_port()
    (tmp_path / "config.yml").write_text(CONFIG.format(folder=tmp_path / "images", port=port))
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([program, "serve", tmp_path / "config.yml"], stdout=log, stderr=log)
    monkeypatch.setenv(published_image.REGISTRY, f"127.0.0.1:{port}/test")
    monkeypatch.setenv(project.TAG, f"wheel-test-{os.getpid()}")
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"127.0.0.1:{port}/test"
    server.terminate()
    server.wait()
    remove(project.image_name("cpu"))


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`drivetrain` of an installed wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    return installed_wheel.make_environment(folder / "venv", installed_wheel.build_wheel(folder), torch=False)


@pytest.fixture
def built_images(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images that were built, which takes too long for a test."""
    images: list[str] = []
    monkeypatch.setattr(docker_engine, "_build_image", lambda word, missing: images.append(word))
    return images


def docker(*words: str, text: str | None = None) -> str:
    done = subprocess.run(["docker", *words], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def remove(image: str) -> None:
    subprocess.run(["docker", "image", "rm", image], capture_output=True, check=False)


def small(name: str, **labels: str) -> None:
    """An image with nothing but labels, in the registry and no longer here."""
    lines = "\n".join(f'LABEL {key.replace("__", ".")}="{value}"' for key, value in labels.items())
    docker("build", "--quiet", "--tag", name, "-", text=f"FROM scratch\n{lines}\n")
    docker("push", "--quiet", name)
    docker("image", "rm", name)


def read_labels() -> dict[str, Any]:
    return docker_engine.connect().images.get(project.image_name("cpu")).labels


def test_a_published_image_of_this_code_is_pulled(
    registry: str, built_images: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    contents, packages = (
        image_contents.combine_hashes(image_contents.hash_files("cpu", patterns=parts))
        for parts in ((*image_contents.PACKAGES, *image_contents.CODE), image_contents.PACKAGES)
    )
    name = published_image.published_name("cpu")
    assert name == f"{registry}/drivetrain/cpu:contents-{contents}"
    small(name, drivetrain__contents=contents, drivetrain__packages=packages)
    docker_engine.provide_image(docker_engine.connect(), "cpu")
    line = capfd.readouterr().out.splitlines()[0]
    assert line.startswith(f"image {name} (sha256:")
    assert ends_with(line, "published-pulling-drivetrain-registry")
    assert (read_labels()[image_contents.LABEL], built_images) == (contents, [])
    docker_engine.provide_image(docker_engine.connect(), "cpu")
    assert capfd.readouterr().out == ""


def test_an_image_with_other_code_under_this_tag_is_not_used(
    registry: str, built_images: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    small(str(published_image.published_name("cpu")), drivetrain__contents="other")
    docker_engine.provide_image(docker_engine.connect(), "cpu")
    assert says(capfd.readouterr().out, "used-contains-code-checkout")
    assert built_images == ["cpu"]


def test_what_is_not_published_is_built(
    registry: str, built_images: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    docker_engine.provide_image(docker_engine.connect(), "cpu")
    assert says_only(capfd.readouterr().out, "image-is-not-to-be-had", published_image.published_name("cpu"))
    assert built_images == ["cpu"]


def test_a_registry_that_does_not_answer(
    cpu_image: str, built_images: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(project.TAG, f"wheel-test-{os.getpid()}")
    monkeypatch.setenv(published_image.REGISTRY, f"127.0.0.1:{free_port()}/test")
    docker_engine.provide_image(docker_engine.connect(), "cpu")
    (line,) = capfd.readouterr().out.splitlines()
    assert "connection refused" in line
    assert built_images == ["cpu"]


def test_edited_code_is_built_without_asking(
    cpu_image: str, built_images: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The packages are those of the image that is here, so a build takes seconds."""
    monkeypatch.setenv(published_image.REGISTRY, "127.0.0.1:1/test")
    monkeypatch.setattr(image_contents, "differs", lambda labels, word: True)
    docker_engine.provide_image(docker_engine.connect(), "cpu")
    assert (built_images, capfd.readouterr().out) == (["cpu"], "")


def test_the_wheel_trains_in_an_image_given_by_name(cpu_image: str, command: Path, tmp_path: Path) -> None:
    """From an empty folder with nothing of the checkout; the run and its report are there."""
    folder = tmp_path / "empty"
    folder.mkdir()
    rows = [f"{i % 7},{i % 3},{'yes' if i % 7 > 3 else 'no'}" for i in range(60)]
    (folder / "visits.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    (folder / "job.yaml").write_text(
        "name: visits\ntask: tabular-classification\ndata: {train: visits.csv, target: label}\n"
        "train: {epochs: 1}\noptimize: {measure: off}\n"
    )
    (folder / ".env").write_text("A='not for compose\n")
    launch = installed_wheel.run_installed(command, "launch", "job.yaml", "--image", cpu_image, folder=folder)
    try:
        assert launch.returncode == 0, launch.stdout + launch.stderr
        assert (folder / "runs" / "visits-001" / "report.html").is_file()
        # Prediction needs torch, and so the image too.
        prediction = installed_wheel.run_installed(
            command, "predict", "visits-001", "visits.csv", folder=folder, DRIVETRAIN_TAG=cpu_image.rpartition(":")[2]
        )
        assert len(prediction.stdout.splitlines()) == 61, prediction.stderr
    finally:
        container_ids = docker("ps", "-aq", "--filter", f"name=^{project.container_prefix(folder)}-")
        for container in container_ids.split():
            docker("rm", "-f", container)


def test_the_wheel_names_what_it_would_pull(cpu_image: str, command: Path, tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text("a,label\n1,x\n2,y\n" * 20)
    (tmp_path / "job.yaml").write_text(
        "name: visits\ntask: tabular-classification\ndata: {train: visits.csv, target: label}\n"
    )
    registry_address = f"127.0.0.1:{free_port()}/test"
    done = installed_wheel.run_installed(
        command, "launch", "job.yaml", folder=tmp_path, DRIVETRAIN_REGISTRY=registry_address
    )
    local, remote = f"localhost/drivetrain/cpu:{VERSION}", f"{registry_address}/drivetrain/cpu:{VERSION}"
    assert done.returncode == 9
    assert says_each(
        done.stderr.splitlines(),
        [
            get_message("there-is-no-image-here-and", local, remote),
            get_message("possible-image-published-loaded"),
            f"  do:       docker pull {remote}, then docker tag {remote} {local}; or `drivetrain launch JOB --image NAME`",
        ],
    )


def test_the_labels_say_what_an_image_is(cpu_image: str) -> None:
    """The predefined annotation keys of the OCI image specification, each that this build can know."""
    labels = docker_engine.connect().images.get(cpu_image).labels
    begin = "org.opencontainers.image."
    oci = {key.removeprefix(begin): value for key, value in labels.items() if key.startswith(begin)}
    assert oci.keys() >= {"title", "description", "licenses", "version", "created", "base.name"}
    assert (oci["title"], oci["licenses"], oci["version"]) == ("drivetrain-cpu", "MIT", VERSION)
    assert oci["created"].endswith("Z")
    assert not {"", "unknown"} & set(labels.values())
