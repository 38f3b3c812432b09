"""Tests of trackers have a double of a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mlflow_double import MlflowDouble, serve_mlflow


@pytest.fixture
def server() -> Iterator[MlflowDouble]:
    with serve_mlflow(MlflowDouble()) as double:
        yield double
