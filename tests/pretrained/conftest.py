"""Tests with a hub have a cache of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.pretrained import hub_client
from tests.hub_server import Hub, serve_hub
from tests.pretrained import hub_dataset, hub_network


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of this test, no token and no proxy of the user, and short pauses."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hub_client, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub(Hub(dict(hub_network.FILES))) as served_hub:
        monkeypatch.setenv("HF_ENDPOINT", served_hub.endpoint)
        yield served_hub


@pytest.fixture
def dataset_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub(Hub(dict(hub_dataset.FILES), name=hub_dataset.NAME, kind="datasets")) as served_hub:
        monkeypatch.setenv("HF_ENDPOINT", served_hub.endpoint)
        yield served_hub


@pytest.fixture
def lines() -> list[str]:
    return []
