"""A compiler that fails: the run goes on without it, says so once, and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.optimizations import compile, cuda_graphs
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import compiled_forward, loop, run
from drivetrain.training.saver import Saver
from tests import reports, tiny
from tests.messages import begins_with, get_message, says_each, says_only
from tests.training.hooked_run import Still


def broken(*given: Any, **named: Any) -> Any:
    raise RuntimeError("no kernel for this chip\nand a second line")


def fit(folder: Path, settings: dict[str, Any]) -> run.Run:
    folder.mkdir()
    made = tiny.assembled(folder, tiny.job(), settings=settings)
    made.metrics = MetricsLog(folder)
    saver = Saver(made)
    saver.save_final()
    assert loop.fit(made, saver, Still()) == "all 3 epochs trained"  # type: ignore[arg-type]
    made.metrics.close()
    return made


@pytest.mark.parametrize("graphs", [False, True])
def test_a_failing_compiler_is_reported_once_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graphs: bool
) -> None:
    """The compiler is torch's own; what it hands the graph to fails, as on a chip without kernels."""
    real = torch.compile
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: real(network, backend=broken))
    plain = fit(tmp_path / "plain", {})
    made = fit(tmp_path / "compiled", {"compile": True, "cuda_graphs": graphs})
    (event,) = [json.loads(row) for row in (tmp_path / "compiled" / "events.jsonl").read_text().splitlines()]
    assert (event["kind"], event["step"]) == ("compile", 0)
    assert begins_with(event["text"], "compile-failed-training-continues-without", "broken")
    assert "\n" not in event["text"]
    assert not made.step.compiled
    weights = plain.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in made.model.state_dict().items())


def test_an_error_of_the_network_is_not_taken_for_one_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: broken)
    made = tiny.assembled(tmp_path, tiny.job(), settings={"compile": True})
    with pytest.raises(RuntimeError, match="no kernel for this chip"):
        made.step.outputs((torch.zeros(16, 1, 8, 8),))


class Stub:
    """Stands in for torch's compiler: what it makes computes as the network does, and fails where it is told to."""

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
    made = fit(tmp_path / "run", {"compile": True, "cuda_graphs": True})
    (event,) = [json.loads(row) for row in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert says_only(event["text"], "cuda-graphs-failed-training")
    assert stub.calls.count("recorded") == 1
    assert (cuda_graphs.effective(made), compile.effective(made)) == (False, True)


@pytest.mark.parametrize(("graphs", "call"), [(False, "compiled"), (True, "recorded")])
def test_only_whole_training_batches_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graphs: bool, call: str
) -> None:
    """The smaller last batch of an epoch and an evaluation would each be compiled again, for as long as the first."""
    stub = Stub()
    monkeypatch.setattr(torch, "compile", stub)
    made = tiny.assembled(tmp_path, tiny.job(), settings={"compile": True, "cuda_graphs": graphs})
    whole, rest = torch.zeros(16, 1, 8, 8), torch.zeros(5, 1, 8, 8)
    for images in (whole, rest, whole):
        made.step.outputs((images,))
    with torch.inference_mode():
        made.step.outputs((whole,))
    assert stub.calls == [call, call]
    made.step.use_micro_batch(5)
    made.step.outputs((rest,))
    assert stub.calls == [call, call, "compiled"]


def test_an_error_of_the_network_is_not_taken_for_one_of_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: broken)
    made = tiny.assembled(tmp_path, tiny.job(), settings={"compile": True, "cuda_graphs": True})
    with pytest.raises(RuntimeError, match="no kernel for this chip"):
        made.step.outputs((torch.zeros(16, 1, 8, 8),))


class Restless(torch.nn.Module):
    """Another constant in every step, for each of which torch compiles anew."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.texts = inner, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(images) * float(f"1.{self.texts:03}")
        return made


def test_a_compiler_that_gave_up_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch itself stops after eight shapes without a word, and the plan would say `true` to the end."""
    torch.compiler.reset()
    monkeypatch.setattr(compiled_forward, "MAX_COMPILATIONS", 3)
    real, told = torch.compile, list[str]()
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: real(network, backend="eager"))
    made = tiny.assembled(tmp_path, tiny.job(), settings={"compile": True})
    restless = Restless(made.model)
    made.configure_step(forward=restless, report_compile=told.append)
    made.compile_step()
    for number in range(6):
        restless.texts = number
        made.step.outputs((torch.zeros(16, 1, 8, 8),))
    assert says_each(told, [get_message("compile-failed-training-continues-without-recompiled", 3)])
    assert compile.effective(made) is False
    compiled_forward.restore_settings()
    torch.compiler.reset()


def test_texts_of_many_lengths_stay_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own limit of eight is not enough for all lengths."""
    torch.compiler.reset()
    monkeypatch.chdir(tmp_path)
    reports.write(tmp_path)
    asked = reports.job(tmp_path, model=reports.ENCODER)
    real, told = torch.compile, list[str]()
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: real(network, backend="eager"))
    made = tiny.plain(asked, tmp_path)
    made.configure_step(report_compile=told.append)
    made.compile_step()
    ids = np.arange(asked.train.batch)
    given = made.dataset.prepare(made.dataset.train.gather(ids), ids, None)
    for length in (20, 19, 7, 3, 2, 1):
        made.step.outputs(tuple(x[:, :length] for x in given))
    assert told == []
    limit = torch._dynamo.config.recompile_limit
    compiled_forward.restore_settings()
    torch.compiler.reset()
    assert (limit, torch._dynamo.config.recompile_limit) == (32, 8)
