"""Where published images are looked for, and which of them are taken."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path

import pytest

from drivetrain.errors import SpecError
from drivetrain.launch import image_contents, published_image
from drivetrain.system.version import VERSION
from tests.messages import says_only


def origin(monkeypatch: pytest.MonkeyPatch, folder: Path, address: str | None) -> None:
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    if address:
        subprocess.run(["git", "-C", folder, "remote", "add", "origin", address], check=True)
    monkeypatch.setattr(published_image, "CHECKOUT", folder)


@pytest.mark.parametrize(
    ("address", "registry"),
    [
        ("https://github.com/Someone/drivetrain.git", "ghcr.io/someone"),
        ("git@github.com:some-one/drivetrain.git", "ghcr.io/some-one"),
        ("https://git.example.org/someone/drivetrain.git", None),
        (None, None),
    ],
)
def test_the_registry_of_the_owner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str | None, registry: str | None
) -> None:
    origin(monkeypatch, tmp_path, address)
    assert published_image.find_registry({}) == registry


def test_the_owner_of_another_repository_publishes_no_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    origin(monkeypatch, tmp_path / "other", "https://github.com/someone/other.git")
    (inside := tmp_path / "other" / "source").mkdir()
    monkeypatch.setattr(published_image, "CHECKOUT", inside)
    assert published_image.find_registry({}) is None
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert published_image.find_registry({}) is None


def test_a_worktree_has_the_owner_of_its_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    origin(monkeypatch, tmp_path / "main", "https://github.com/someone/drivetrain")
    git = ["git", "-C", str(tmp_path / "main"), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "one"], check=True)
    subprocess.run([*git, "worktree", "add", "--quiet", str(tmp_path / "other")], check=True, capture_output=True)
    monkeypatch.setattr(published_image, "CHECKOUT", tmp_path / "other")
    monkeypatch.setenv("PATH", "")
    assert published_image.find_registry({}) == "ghcr.io/someone", "git does not run"


def test_the_owner_of_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_image, "CHECKOUT", None)
    fields = {"Project-URL": ["Source, https://github.com/Someone/drivetrain"]}

    class Metadata:
        def get_all(self, name: str) -> list[str] | None:
            return fields.get(name)

    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: Metadata())
    assert published_image.find_registry({}) == "ghcr.io/someone"
    assert published_image.published_tag("cpu") == VERSION
    fields.clear()
    assert published_image.find_registry({}) is None


@pytest.mark.parametrize(
    ("setting", "registry"), [("none", None), ("", None), ("127.0.0.1:5000/x", "127.0.0.1:5000/x")]
)
def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, registry: str | None) -> None:
    origin(monkeypatch, tmp_path, "https://github.com/someone/drivetrain")
    assert published_image.find_registry({published_image.REGISTRY: setting}) == registry


@pytest.mark.parametrize("setting", ["https://ghcr.io/someone", "ghcr.io/Someone", "ghcr.io/some one", "ghcr.io/x/"])
def test_a_variable_that_names_no_registry(setting: str) -> None:
    with pytest.raises(SpecError, match=f"DRIVETRAIN_REGISTRY={setting}: not the name of a registry"):
        published_image.find_registry({published_image.REGISTRY: setting})


def test_a_checkout_takes_only_its_own_code() -> None:
    """Its tag is the digest of what it contains: an edited file means another one."""
    digest = image_contents.combine_hashes(image_contents.hash_files("cpu"))
    assert published_image.published_tag("cpu") == f"contents-{digest}"
    assert published_image._find_mismatch({image_contents.LABEL: digest}, "cpu") is None
    assert says_only(published_image._find_mismatch({image_contents.LABEL: "other"}, "cpu"), "contains-code-checkout")


def test_a_wheel_takes_only_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_image, "CHECKOUT", None)
    label = "org.opencontainers.image.version"
    assert published_image._find_mismatch({label: VERSION}, "cpu") is None
    assert says_only(
        published_image._find_mismatch({label: "9.9"}, "cpu"), "it-is-of-version-this-program", "9.9", VERSION
    )
