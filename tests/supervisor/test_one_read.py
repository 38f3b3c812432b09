"""A job is read once: what is edited after the start of a command changes nothing of what it trains or measures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.cli import main
from drivetrain.data.custom import user_code, user_loss
from drivetrain.distributed.world import WORLD_SIZE
from drivetrain.errors import CheckpointError, Replanned, SpecError
from drivetrain.job_spec import spec_source
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.supervisor import child_runs, supervisor
from drivetrain.supervisor.run_folder import RunFolder
from drivetrain.supervisor.supervisor import TrainRequest
from drivetrain.system import child_process
from drivetrain.system.signals import SignalForwarder
from drivetrain.training import handshake
from drivetrain.tuning import measuring_child
from drivetrain.tuning.measuring_request import MeasuringRequest, measure
from tests import own_job
from tests.messages import saying, says
from tests.tiny import machine

FILES = {
    "my_model.py": "from parts.layers import WIDTH\n\ndef build():\n    import late\n    return WIDTH, late.DEPTH\n",
    "parts/layers.py": "WIDTH = 4\n",
    "late.py": "DEPTH = 1\n",
    "my_loss.py": "from pathlib import Path\n\ndef loss(config):\n    scale = int(Path(config).read_text())\n    return lambda o, t: scale * o.mean()\n",
    "scale.json": "2",
}
LOSS = "optimizer: {name: sgd, lr: 0.5}, loss: {file: my_loss.py, arguments: {config: scale.json}}"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return own_job.write_job(tmp_path, FILES, train=LOSS)


def edit(spec: Path) -> None:
    """Change every file of the job, and break one of them."""
    folder = spec.parent
    spec.write_text(spec.read_text().replace("lr: 0.5", "lr: 1.0"))
    (folder / "my_model.py").write_text("def build(:\n")
    (folder / "parts" / "layers.py").unlink()
    (folder / "late.py").write_text("DEPTH = 7\n")
    (folder / "scale.json").write_text("3")


def job_of(source: SpecSource) -> tuple[float, object, float]:
    """The rate, what the network is made of, and the loss of a job, as a trainer gets them."""
    job: Any = source.load()
    network = user_code.open_code(job.folder).bind(job.model.file, job.model.factory, job.model.arguments)()
    terms: Any = user_loss.load(job)
    return job.train.optimizer.lr, network, float(terms.function(torch.ones(2, 1), torch.ones(2)))


def read_child_source(options: Sequence[str]) -> SpecSource:
    """The source that a child process gets by its options."""
    parser = argparse.ArgumentParser()
    spec_source.add_options(parser)
    return SpecSource.from_arguments(parser.parse_known_args(options)[0])


AS_STARTED = (0.5, (4, 1), 2.0)


def test_every_attempt_trains_what_was_read_at_the_start(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []

    def train(
        request: TrainRequest,
        count: int,
        environment: object,
        forward: SignalForwarder,
        run: RunFolder,
        options: object,
    ) -> int:
        edit(spec) if not jobs else None
        jobs.append(job_of(read_child_source(supervisor.trainer_command(request, run.path)[4:])))
        return 10 if len(jobs) == 1 else 0

    monkeypatch.setattr(supervisor, "run_trainers", train)
    monkeypatch.setattr(Replanned, "exit_code", 10)
    assert supervisor.train(TrainRequest(SpecSource(spec), runs=spec.parent / "runs", plain=True)) == 0
    assert jobs == [AS_STARTED] * 2


def test_a_child_that_measures_gets_what_its_command_has_read(
    spec: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    sources: list[SpecSource] = []
    monkeypatch.setattr(measuring_child, "measure", lambda kind, folder, source, *others: sources.append(source) or 0)
    measure(MeasuringRequest("memory", spec))
    edit(spec)
    assert job_of(read_child_source([str(spec), *sources[0].options()])) == AS_STARTED


def test_all_runs_are_trained_from_one_copy(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `repeat` and `sweep`, and a file that is edited after the first one began."""
    requests: list[TrainRequest] = []

    def train(command: list[str], environment: dict[str, str], forward: object, **more: object) -> int:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return main.main(command[3:])

    monkeypatch.setattr(child_process, "run_child", train)
    monkeypatch.setattr(supervisor, "train", lambda request: requests.append(request) or 0)
    source = SpecSource(spec)
    with child_runs.open_child_runs(source, source.load(), spec.parent / "runs") as children:
        edit(spec)
        for seed in range(2):
            assert children.train([f"train.seed={seed}"]) == (0, {})
        jobs = [job_of(replace(request.source, assignments=())) for request in requests]
    assert jobs == [AS_STARTED] * 2


def test_what_is_changed_between_two_commands_is_refused(spec: Path, tmp_path: Path) -> None:
    source = SpecSource(spec)
    for name in ("run", "again"):
        (tmp_path / name).mkdir()
    job_of(first := source.copy_to(tmp_path / "run", source.load()))
    user_code.record_digests(
        tmp_path, user_code.open_code(tmp_path, None, first.copy / spec_source.CODE if first.copy else None)
    )
    (tmp_path / "scale.json").write_text("3")
    job_of(source.copy_to(tmp_path / "again", source.load()))
    with pytest.raises(CheckpointError, check=saying("was-started-with-different", "scale.json")):
        user_code.record_digests(tmp_path, user_code.open_code(tmp_path))


def test_a_node_with_other_code_is_refused(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORLD_SIZE, "2")
    introductions = []
    for name in ("leader", "node"):
        (tmp_path / name).mkdir()
        source = SpecSource(spec)
        job = source.load()
        job = source.copy_to(tmp_path / name, job).load()
        (tmp_path / name / "hardware.json").write_text(json.dumps(machine().to_json()))
        introductions.append(handshake._describe_process(tmp_path / name, job))
        (tmp_path / "late.py").write_text("DEPTH = 7\n")
    refusal = handshake._find_difference(introductions[0], introductions[1], 1)
    assert refusal is not None
    assert refusal["exit_code"] == SpecError.exit_code
    assert says(refusal["texts"][0], "has-another-than-leader", "late.py")
    assert handshake._find_difference(introductions[0], introductions[0], 1) is None
