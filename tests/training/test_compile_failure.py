"""If the compiler fails, the run continues without it, says so once, and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.models import compiled_forward
from drivetrain.optimizations import compile
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import loop, run
from drivetrain.training.saver import Saver
from tests import reports, tiny
from tests.messages import begins_with, get_message, says_each, says_only
from tests.training.hooked_run import SilentProgress


def fail_to_compile(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("no kernel for this chip\nand a second line")


def fit(folder: Path, settings: dict[str, Any]) -> run.Run:
    folder.mkdir()
    training_run = tiny.assemble_run(folder, tiny.job(), settings=settings)
    training_run.metrics = MetricsLog(folder)
    saver = Saver(training_run)
    saver.save_final()
    assert loop.fit(training_run, saver, SilentProgress()) == "all 3 epochs trained"  # type: ignore[arg-type]
    training_run.metrics.close()
    return training_run


@pytest.mark.parametrize("mode", [True, "graphs"])
def test_a_failing_compiler_is_reported_once_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: bool | str
) -> None:
    """torch's compiler itself runs, but its backend fails, as on a chip without kernels."""
    torch_compile = torch.compile
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: torch_compile(network, backend=fail_to_compile))
    plain_run = fit(tmp_path / "plain", {})
    compiled_run = fit(tmp_path / "compiled", {"compile": mode})
    (event,) = [json.loads(row) for row in (tmp_path / "compiled" / "events.jsonl").read_text().splitlines()]
    assert (event["kind"], event["step"]) == ("compile", 0)
    assert begins_with(event["text"], "compile-failed-training-continues-without", "fail_to_compile")
    assert "\n" not in event["text"]
    assert not compiled_run.step.forward.is_compiled
    weights = plain_run.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in compiled_run.model.state_dict().items())


def test_an_error_of_the_network_is_not_taken_for_one_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: fail_to_compile)
    training_run = tiny.assemble_run(tmp_path, tiny.job(), settings={"compile": True})
    with pytest.raises(RuntimeError, match="no kernel for this chip"):
        training_run.step.forward.outputs((torch.zeros(16, 1, 8, 8),))


class Stub:
    """Stands in for torch's compiler: its results compute the same as the network, and fail on request."""

    def __init__(self, recorded: BaseException | None = None) -> None:
        self.recorded, self.calls = recorded, list[str]()

    def __call__(self, network: Any, mode: str | None = None) -> Any:
        def call(*inputs: Any) -> Any:
            self.calls.append("recorded" if mode else "compiled")
            if mode and self.recorded:
                raise self.recorded
            return network(*inputs)

        return call


def test_recorded_kernels_that_fail_leave_compiled_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(RuntimeError("accessing tensor output of CUDAGraphs that has been overwritten\nand more"))
    monkeypatch.setattr(torch, "compile", stub)
    training_run = fit(tmp_path / "run", {"compile": "graphs"})
    (event,) = [json.loads(row) for row in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert says_only(event["text"], "cuda-graphs-failed-training")
    assert stub.calls.count("recorded") == 1
    assert compile.effective(training_run) is True


@pytest.mark.parametrize(("mode", "call"), [(True, "compiled"), ("graphs", "recorded")])
def test_only_whole_training_batches_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: bool | str, call: str
) -> None:
    """The smaller last batch of an epoch and an evaluation would each be compiled again, for as long as the first."""
    stub = Stub()
    monkeypatch.setattr(torch, "compile", stub)
    training_run = tiny.assemble_run(tmp_path, tiny.job(), settings={"compile": mode})
    full_batch, last_batch = torch.zeros(16, 1, 8, 8), torch.zeros(5, 1, 8, 8)
    for images in (full_batch, last_batch, full_batch):
        training_run.step.forward.outputs((images,))
    with torch.inference_mode():
        training_run.step.forward.outputs((full_batch,))
    assert stub.calls == [call, call]
    training_run.step.use_micro_batch(5)
    training_run.step.forward.outputs((last_batch,))
    assert stub.calls == [call, call, "compiled"]


def test_an_error_of_the_network_is_not_taken_for_one_of_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: fail_to_compile)
    training_run = tiny.assemble_run(tmp_path, tiny.job(), settings={"compile": "graphs"})
    with pytest.raises(RuntimeError, match="no kernel for this chip"):
        training_run.step.forward.outputs((torch.zeros(16, 1, 8, 8),))


class Restless(torch.nn.Module):
    """Uses another constant in every step, so that torch compiles each time."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.texts = inner, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.inner(images) * float(f"1.{self.texts:03}")
        return outputs


def test_a_compiler_that_gave_up_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch itself stops after eight shapes without a word, and the plan would say `true` to the end."""
    torch.compiler.reset()
    monkeypatch.setattr(compiled_forward, "MAX_COMPILATIONS", 3)
    torch_compile, messages = torch.compile, list[str]()
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: torch_compile(network, backend="eager"))
    training_run = tiny.assemble_run(tmp_path, tiny.job(), settings={"compile": True})
    restless = Restless(training_run.model)
    training_run.step.forward.compute = restless
    training_run.step.report = lambda kind, text: messages.append(text)
    training_run.step.compile()
    for number in range(6):
        restless.texts = number
        training_run.step.forward.outputs((torch.zeros(16, 1, 8, 8),))
    assert says_each(messages, [get_message("compile-failed-training-continues-without-recompiled", 3)])
    assert compile.effective(training_run) is False
    compiled_forward.restore_settings()
    torch.compiler.reset()


def test_texts_of_many_lengths_stay_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own limit of eight is not enough for all lengths."""
    torch.compiler.reset()
    monkeypatch.chdir(tmp_path)
    reports.write_reports(tmp_path)
    text_job = reports.job(tmp_path, model=reports.ENCODER)
    torch_compile, messages = torch.compile, list[str]()
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: torch_compile(network, backend="eager"))
    training_run = tiny.assemble_plain_run(text_job, tmp_path)
    training_run.step.report = lambda kind, text: messages.append(text)
    training_run.step.compile()
    ids = np.arange(text_job.train.batch)
    inputs = training_run.dataset.prepare(training_run.dataset.train.gather(ids), ids, None)
    for length in (20, 19, 7, 3, 2, 1):
        training_run.step.forward.outputs(tuple(x[:, :length] for x in inputs))
    assert messages == []
    limit = torch._dynamo.config.recompile_limit
    compiled_forward.restore_settings()
    torch.compiler.reset()
    assert (limit, torch._dynamo.config.recompile_limit) == (32, 8)
