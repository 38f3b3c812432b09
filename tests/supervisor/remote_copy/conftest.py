"""A store behind a proxy that fails, and a run to copy to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_store import FaultyStore
from tests.supervisor.remote_copy.fake_run import faulty_store, make_run


@pytest.fixture
def proxy(s3: str) -> Iterator[FaultyStore]:
    """The proxy, with its variables in the environment."""
    with faulty_store(s3) as store:
        yield store


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run without a checkpoint."""
    return make_run(tmp_path / "runs" / "parts-001")
