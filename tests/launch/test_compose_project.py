"""The containers of a job: one at a time, and none after a run that ended well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import docker
from drivetrain.errors import Busy
from drivetrain.launch import project as checkout
from drivetrain.launch.compose_project import KEEP, ComposeProject
from tests.messages import saying


class Engine:
    """An engine with a trainer and what prepared it."""

    def __init__(self, status: str = "exited", error: Exception | None = None) -> None:
        self.status, self.error = status, error
        self.removed: list[str] = []
        self.asked: list[list[str]] = []
        self.containers = SimpleNamespace(list=self.found)

    def found(self, all: bool, filters: dict[str, list[str]]) -> list[Any]:
        self.asked.append(filters["label"])
        service = filters["label"][1].rpartition("=")[2]

        def remove() -> None:
            if self.error:
                raise self.error
            self.removed.append(service)

        return [SimpleNamespace(status=self.status, name=f"drivetrain-1-a-{service}-1", remove=remove)]


def test_a_job_in_training_is_no_storage_error() -> None:
    with pytest.raises(Busy, check=saying("drivetrain-trainer-already-training")) as caught:
        ComposeProject(Engine("running"), "a").start({}, "cpu", {})
    assert caught.value.exit_code == 11


def test_both_containers_are_removed_and_no_others() -> None:
    engine = Engine()
    ComposeProject(engine, "Job.7").remove()
    assert engine.removed == ["trainer", "prepare"]
    assert {query[0] for query in engine.asked} == {f"com.docker.compose.project={checkout.container_prefix()}-job-7"}


def test_they_stay_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEEP, "1")
    engine = Engine()
    ComposeProject(engine, "a").remove()
    assert engine.removed == []


def test_one_that_is_gone_or_runs_again_is_left() -> None:
    ComposeProject(Engine(error=docker.errors.NotFound("gone")), "a").remove()
    ComposeProject(Engine(error=docker.errors.APIError("You cannot remove a running container")), "a").remove()
