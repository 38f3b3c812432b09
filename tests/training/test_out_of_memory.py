"""Memory that runs out in a step, an update or an evaluation: the work is repeated in smaller parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.system.run_files import list_checkpoints
from drivetrain.training import run
from drivetrain.training.checkpoints import checkpoint
from tests.messages import get_message, saying, says_each
from tests.training.hooked_run import fit, limit_samples, read_rows, run_out_of_memory


@pytest.mark.slow
def test_memory_that_runs_out_in_a_step(tmp_path: Path) -> None:
    """From the retry on, the same as naming that micro-batch: buffers and draws are rewound."""
    (tmp_path / "a").mkdir()
    training_run, reason = fit(tmp_path / "a", limit_samples(5))
    assert reason == "all 3 epochs trained"
    assert training_run.step.forward.micro_batch == 4
    texts = [row["text"] for row in read_rows(tmp_path / "a", "events.jsonl")]
    assert says_each(
        texts,
        [
            get_message("memory-micro-batch-continuing-same", 16, 8),
            get_message("memory-micro-batch-continuing-same", 8, 4),
        ],
    )
    (tmp_path / "b").mkdir()
    run_of_named_size, _ = fit(tmp_path / "b", lambda training_run: training_run.step.use_micro_batch(4))
    assert all(
        torch.equal(v, training_run.model.state_dict()[k]) for k, v in run_of_named_size.model.state_dict().items()
    )
    state = checkpoint.load(list_checkpoints(tmp_path / "a" / "checkpoints")[-1]).state
    assert state["counters"]["step"] == 0  # only the trial save: nothing else was due


@pytest.mark.slow
def test_memory_that_runs_out_in_the_middle_of_an_update(tmp_path: Path) -> None:
    """Half of the weights may be new: back to the last checkpoint, and on from there as if with that micro-batch."""
    (tmp_path / "a").mkdir()

    def spoil(training_run: run.Run) -> None:
        original_step, calls = training_run.optimizer.step, [0]

        def step(*arguments: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == 5:
                next(training_run.model.parameters()).data.add_(1.0)
                run_out_of_memory()
            return original_step(*arguments, **options)

        training_run.optimizer.step = step  # type: ignore[method-assign]

    training_run, reason = fit(tmp_path / "a", spoil)
    assert reason == "all 3 epochs trained"
    assert training_run.step.forward.micro_batch == 8
    texts = [row["text"] for row in read_rows(tmp_path / "a", "events.jsonl")]
    assert says_each(
        texts,
        [
            get_message("memory-micro-batch-continuing-same", 16, 8),
            get_message("memory-middle-update-back", "step-0"),
        ],
    )
    (tmp_path / "b").mkdir()
    run_of_named_size, _ = fit(tmp_path / "b", lambda training_run: training_run.step.use_micro_batch(8))
    assert all(
        torch.equal(v, training_run.model.state_dict()[k]) for k, v in run_of_named_size.model.state_dict().items()
    )
    assert read_rows(tmp_path / "a", "metrics.jsonl") == read_rows(tmp_path / "b", "metrics.jsonl")


def test_memory_that_runs_out_in_the_evaluation(tmp_path: Path) -> None:
    def spoil(training_run: run.Run) -> None:
        def hook(module: torch.nn.Module, inputs: Any) -> None:
            if not module.training and len(inputs[0]) > 16:
                run_out_of_memory()

        training_run.model.register_forward_pre_hook(hook)

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    training_run, reason = fit(tmp_path / "a", spoil)
    assert reason == "all 3 epochs trained"
    assert training_run.step.forward.micro_batch is None
    texts = [row["text"] for row in read_rows(tmp_path / "a", "events.jsonl")]
    assert says_each(
        texts[:2],
        [
            get_message("memory-evaluation-batches-retrying", 64, 32),
            get_message("memory-evaluation-batches-retrying", 32, 16),
        ],
    )
    plain_run, _ = fit(tmp_path / "b", lambda training_run: None)
    assert all(torch.equal(v, training_run.model.state_dict()[k]) for k, v in plain_run.model.state_dict().items())


def test_memory_that_is_short_for_one_sample(tmp_path: Path) -> None:
    from drivetrain.errors import OutOfMemory

    with pytest.raises(OutOfMemory, check=saying("memory-micro-batch", 1)):
        fit(tmp_path, limit_samples(0))


def test_other_errors_are_not_taken_for_memory(tmp_path: Path) -> None:
    def spoil(training_run: run.Run) -> None:
        def hook(module: torch.nn.Module, inputs: Any) -> None:
            raise RuntimeError("shapes do not fit")

        training_run.model.register_forward_pre_hook(hook)

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        fit(tmp_path, spoil)
