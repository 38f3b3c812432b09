"""A compiler that fails: the run goes on without it, says so once, and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime import loop, run
from runtime.metrics import Metrics
from runtime.saving import Saver
from tests import tiny
from tests.test_numerics import Still


def broken(*given: Any, **named: Any) -> Any:
    raise RuntimeError("no kernel for this chip\nand a second line")


def fit(folder: Path, settings: dict[str, Any]) -> run.Run:
    folder.mkdir()
    made = tiny.assembled(folder, tiny.job(), settings=settings)
    made.metrics = Metrics(folder)
    saver = Saver(made)
    saver.final()
    assert loop.fit(made, saver, Still()) == "all 3 epochs are done"  # type: ignore[arg-type]
    made.metrics.close()
    return made


@pytest.mark.parametrize("graphs", [False, True])
def test_a_failing_compiler_is_told_once_and_nothing_is_lost(
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
    assert event["text"].startswith("compile failed, training goes on without it: backend='broken' raised")
    assert "\n" not in event["text"]
    assert made.step.forward is made.step.plain
    weights = plain.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in made.model.state_dict().items())


def test_an_error_of_the_network_is_not_taken_for_one_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: broken)
    made = tiny.assembled(tmp_path, tiny.job(), settings={"compile": True})
    with pytest.raises(RuntimeError, match="no kernel for this chip"):
        made.step.outputs((torch.zeros(4, 1, 8, 8),))
