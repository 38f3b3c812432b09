"""A network on a hub, and what is fetched of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.pretrained import hub
from drivetrain.pretrained.hub import Fetched
from drivetrain.pretrained.hub_error import HubError
from tests.hub_server import NAME

FILES = {
    "config.json": b'{"model_type": "bert"}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(range(256)) * 4000,
    "modeling_own.py": b"raise SystemExit('run')",
    "tf_model.h5": b"other weights",
    "README.md": b"words",
}
NEEDED = ["config.json", "model.safetensors", "tokenizer.json"]
OTHER = "89abcdef0123456789abcdef0123456789abcdef"


def fetch_network(lines: list[str] | None = None, revision: str = "main") -> Fetched:
    return hub.fetch_network(NAME, revision, (lines if lines is not None else []).append)


def catch_hub_error(lines: list[str] | None = None, revision: str = "main") -> HubError:
    with pytest.raises(HubError) as caught:
        fetch_network(lines, revision)
    return caught.value


def repository_cache(tmp_path: Path) -> Path:
    return tmp_path / "home" / "hub" / "models--casa--beto"


def list_part_files(tmp_path: Path) -> list[str]:
    """What is left that is not complete."""
    return sorted(path.name for path in repository_cache(tmp_path).rglob("*") if path.name.endswith(".part"))
