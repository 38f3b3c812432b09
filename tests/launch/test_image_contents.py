"""No run trains with other code than that of its checkout: what an image was built from is compared by content."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from drivetrain.cli import main
from drivetrain.errors import DeviceError
from drivetrain.launch import docker_engine, image_contents, published_image
from tests.messages import saying
from tests.paths import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What goes into the images, and some of the rest."""
    for name in ("docker", "runtime", "scripts", "LICENSE"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.whl")
            shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "runtime/drivetrain/training/loop.py",
        "docker/requirements-cpu.txt",
        "docker/openmp-cpu.txt",
        "docker/Dockerfile",
        "docker/unused/wheels.txt",
        "docker/sbom.py",
        "docker/own-runs",
        "LICENSE",
    ],
)
def test_any_change_of_what_the_image_is_made_of_is_seen(checkout: Path, name: str) -> None:
    labels = {image_contents.LABEL: image_contents.combine_hashes(image_contents.hash_files("cpu", ROOT))}
    assert not image_contents.differs(labels, "cpu", checkout)
    with (checkout / name).open("a") as file:
        file.write("#")
    assert image_contents.differs(labels, "cpu", checkout)


def test_new_moved_and_removed_files_are_seen(checkout: Path) -> None:
    labels = {image_contents.LABEL: image_contents.combine_hashes(image_contents.hash_files("cpu", checkout))}
    new = checkout / "runtime" / "drivetrain" / "new.py"
    new.write_text("")
    assert image_contents.differs(labels, "cpu", checkout)
    new.unlink()
    assert not image_contents.differs(labels, "cpu", checkout)
    (checkout / "runtime" / "drivetrain" / "errors.py").rename(checkout / "runtime" / "drivetrain" / "errors2.py")
    assert image_contents.differs(labels, "cpu", checkout)


def test_what_is_not_in_the_image_changes_nothing(checkout: Path) -> None:
    labels = {image_contents.LABEL: image_contents.combine_hashes(image_contents.hash_files("cpu", checkout))}
    (checkout / "runtime" / "drivetrain" / "__pycache__").mkdir()
    for name in (
        "runtime/drivetrain/__pycache__/a.pyc",
        "runtime/drivetrain/.errors.py.swp",
        "docker/requirements-legacy.txt",
        "scripts/env",
    ):
        (checkout / name).write_text("changed")
    assert not image_contents.differs(labels, "cpu", checkout)
    assert image_contents.differs(labels, "legacy", checkout)


def test_an_image_without_the_label_is_of_other_code() -> None:
    """Those of earlier versions."""
    assert image_contents.differs({}, "cpu")
    assert image_contents.differs(None, "cpu")


def test_every_ingredient_of_the_dockerfile_is_compared(checkout: Path) -> None:
    """What the Dockerfile copies or mounts from the checkout; the wheels are those of the lock."""
    text = (ROOT / "docker" / "Dockerfile").read_text()
    copy_lines = [line.split() for line in text.splitlines() if line.startswith("COPY ") and "--from=" not in line]
    named = {word for arguments in copy_lines for word in arguments[1:-1] if not word.startswith("--")}
    named |= {part.split("source=")[1].split(",")[0] for part in text.split() if "type=bind,source=" in part}
    parts = {part.replace("{}", "${LOCK}") for part in (*image_contents.PACKAGES, *image_contents.CODE)}
    parts |= {part.format("cpu") for part in image_contents.PACKAGES}
    assert named - parts == {"docker/wheels/${LOCK}", "docker/wheels/${LOCK}-arm64"}


def test_the_comparison_is_quick() -> None:
    """It takes some 20 ms of every start."""
    times = []
    for _ in range(5):
        start = time.process_time()
        image_contents.differs({}, "cpu")
        times.append(time.process_time() - start)
    assert min(times) < 0.1


class Images:
    """An engine's images: one with these labels, or none."""

    def __init__(self, labels: dict[str, str] | None):
        self.labels = labels

    def get(self, name: str) -> Images:
        import docker

        if self.labels is None:
            raise docker.errors.ImageNotFound(name)
        return self


@pytest.mark.parametrize(
    ("labels", "built"),
    [
        (None, "does not exist yet; building it"),
        ({"org.opencontainers.image.revision": "25b868c"}, "was built from other code than that of this checkout"),
        ({image_contents.LABEL: image_contents.combine_hashes(image_contents.hash_files("cpu"))}, ""),
    ],
    ids=["missing", "other code", "this code"],
)
def test_a_start_builds_what_is_missing_or_of_other_code(
    labels: dict[str, str] | None, built: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It printed that `make image-cpu` updates the image, and trained with the other code."""
    monkeypatch.setenv(published_image.REGISTRY, "none")
    ran: list[Any] = []

    def run(line: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        ran.append(line[1:])
        return subprocess.CompletedProcess(line, 0)

    monkeypatch.setattr(subprocess, "run", run)
    engine: Any = type("Engine", (), {"images": Images(labels)})()
    docker_engine.provide_image(engine, "cpu")
    assert ran == ([["cpu"]] if built else [])
    assert built in capsys.readouterr().out


def test_a_container_refuses_a_checkout_with_other_code(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`docker compose up trainer` builds nothing again; the image then meets a checkout that has changed."""
    record = tmp_path / "contents.json"
    record.write_text(json.dumps(image_contents.hash_files("cpu", checkout)))
    image_contents.check_in_container("cpu", record, checkout)
    (checkout / "runtime" / "drivetrain" / "errors.py").write_text("")
    with pytest.raises(DeviceError, check=saying("checkout-changed-since", "runtime/drivetrain/errors.py")):
        image_contents.check_in_container("cpu", record, checkout)
    monkeypatch.setattr(image_contents.check_in_container, "__defaults__", (record, checkout))
    monkeypatch.setenv("DRIVETRAIN_IMAGE", "cpu")
    assert main.main(["train", str(ROOT / "jobs" / "digits.yaml")]) == DeviceError.exit_code
    output = capsys.readouterr()
    assert "`docker compose build trainer`, then the same command" in output.err
    assert output.out == ""


def test_a_container_without_a_checkout_trains(tmp_path: Path) -> None:
    """One that is started by hand with a folder of data, or an older image."""
    record = tmp_path / "contents.json"
    record.write_text("{}")
    image_contents.check_in_container("cpu", record, tmp_path)
    image_contents.check_in_container("cpu", tmp_path / "none.json", ROOT)


def test_no_mode_of_a_clone_reaches_the_image() -> None:
    """A umask of 077 made code that nobody could read; and a builder compares modes, so every layer was built again."""
    text = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    stages = re.split(r"^FROM .* AS ", text, flags=re.MULTILINE)[1:]
    for name, commands in (stage.split("\n", 1) for stage in stages):
        copies = re.findall(r"^COPY (?!--from)(.*)", commands, re.MULTILINE)
        assert all(copy.startswith("--chmod=") for copy in copies) or "chmod -R u=rwX,go=rX" in commands, name
        assert not re.search(r"type=bind,(?!from=)(?!target=/context)", commands), name


def test_torch_is_installed_apart_from_all_that_changes_more_often(tmp_path: Path) -> None:
    """A new release of a small wheel must not install and store torch and CUDA again."""
    text = (ROOT / "docker" / "Dockerfile").read_text()
    (program,) = re.findall(r"awk '(.*?)' /locked", text, re.DOTALL)
    program = program.replace("\\\n", "").replace('"/', f'"{tmp_path}/')
    for lock in sorted((ROOT / "docker").glob("requirements-*.txt")):
        subprocess.run(["awk", program, lock], check=True)
        parts = [(tmp_path / name).read_text().splitlines() for name in ("torch.txt", "others.txt", "large.txt")]
        assert sorted(parts[0] + parts[1] + parts[2]) == sorted(lock.read_text().splitlines())
        names = [{line.partition("==")[0] for line in part if "==" in line} for part in parts]
        assert names[0] >= {"torch"}
        assert not {name for name in names[1] if name.startswith(("nvidia", "cuda", "triton"))} - {"nvidia-ml-py"}
        assert {"torchvision", "nvidia-ml-py", "pydantic"} <= names[1]
        assert {"numpy", "pyarrow", "scipy"} <= names[2]
        assert all(part[0].startswith(("#", "absl")) or "==" in part[0] for part in parts)
