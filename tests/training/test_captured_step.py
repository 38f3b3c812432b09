"""A captured step of a GPU has the bits of a computed one; here a replay calls the step again on the same tensors."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.job_spec import load_job as job_spec
from drivetrain.optimizations import compile, step_graph
from drivetrain.training.captured_step import CudaGraphs
from jobs.samples import write as samples
from tests import examples, tiny
from tests.messages import says_only
from tests.training.replayed_steps import Replayer, assemble_run, bits, train_epochs


class Never:
    """A device that captures nothing."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


@pytest.mark.parametrize(
    ("train", "scaled", "spoil"),
    [
        ("ema: 0.5", False, -1),
        ("ema: 0.5, clip_norm: null", False, 7),
        ("optimizer: {name: sgd, lr: 0.1, momentum: 0.9}", False, 7),
        ("ema: 0.9", True, 6),
    ],
    ids=["averaged", "a bad step", "momentum", "scaled"],
)
def test_a_replayed_step_has_the_bits_of_the_usual_one(tmp_path: Path, train: str, scaled: bool, spoil: int) -> None:
    usual = train_epochs(assemble_run(tmp_path / "usual", train, scaled), None, spoil)
    device = Replayer()
    replayed = train_epochs(assemble_run(tmp_path / "replayed", train, scaled), device, spoil)
    assert device.replays >= 6
    assert replayed.keys() == usual.keys()
    for name, value in usual.items():
        assert bits(replayed[name]) == bits(value), name


def test_a_step_that_cannot_be_captured_is_computed_as_usual(tmp_path: Path) -> None:
    usual = train_epochs(assemble_run(tmp_path / "usual", "ema: 0.5", False), None)
    other = train_epochs(assemble_run(tmp_path / "other", "ema: 0.5", False), Never())
    (line,) = other.pop("messages")
    assert says_only(line, "step-could-captured-cuda-graph")
    assert usual.pop("messages") == []
    assert other.keys() == usual.keys()


@pytest.mark.parametrize("change", ["forget", "micro-batch", "fp32"])
def test_captured_steps_are_forgotten_where_tensors_change(tmp_path: Path, change: str) -> None:
    run = assemble_run(tmp_path / "run", "", False)
    train_epochs(run, Replayer(), epochs=2)
    capture = run.step.capture
    assert capture is not None
    assert capture.captured_steps
    {
        "forget": run.step.forget_last_step,
        "micro-batch": lambda: run.step.use_micro_batch(4),
        "fp32": run.step.fall_back_to_fp32,
    }[change]()
    assert not capture.captured_steps


class TorchCuda:
    """The names of torch.cuda that a capture uses, with the order of torch's C++ code: an error leaves a capture half ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.fails = "usual", False
        self.uses = dict[int, int]()
        """Graphs of each pool, which stays after the last one is gone: cuBLAS has a workspace in it."""
        self.open_pools, self.draws = set[int](), True
        outer, handles = self, itertools.count()

        class Graph:
            def pool(self) -> int:
                return self.number  # type: ignore[attr-defined]

            def replay(self) -> None: ...

            def __del__(self) -> None:
                if hasattr(self, "number"):
                    outer.uses[self.number] -= 1

        class Generator:
            def clone_state(self) -> None: ...

            def graphsafe_set_state(self, state: None) -> None:
                outer.draws = True

        for name, value in {
            "CUDAGraph": Graph,
            "graph": self.graph,
            "graph_pool_handle": lambda: next(handles),
            "device": lambda _: contextlib.nullcontext(),
            "stream": self.use_stream,
            "current_stream": lambda _: self.stream,
            "default_generators": (Generator(),),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_allocation, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self.release, raising=False)

    @contextlib.contextmanager
    def use_stream(self, stream: str) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextlib.contextmanager
    def graph(self, graph: Any, pool: int, capture_error_mode: str) -> Iterator[None]:
        assert not self.open_pools, "captures_underway.empty() INTERNAL ASSERT FAILED"
        assert self.uses.get(pool, 1) > 0, "use_count > 0 INTERNAL ASSERT FAILED"
        self.uses[pool] = self.uses.get(pool, 0) + 1
        self.stream, self.draws = "capture", False
        self.open_pools.add(pool)
        yield
        if self.fails:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.open_pools.remove(pool)
        self.stream, self.draws, graph.number = "usual", True, pool

    def end_allocation(self, device: int, pool: int) -> None:
        if pool not in self.open_pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.open_pools.remove(pool)

    def release(self, device: int, pool: int) -> None:
        self.uses[pool] -= 1


def test_a_capture_that_fails_leaves_stream_allocator_and_generator_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = TorchCuda(monkeypatch)
    graphs, work = CudaGraphs(torch.device("cuda:0")), lambda: None
    first = graphs.capture(work)
    cuda.fails = True
    with pytest.raises(RuntimeError, match="previous error during capture"):
        graphs.capture(work)
    assert (cuda.stream, cuda.open_pools, cuda.draws, cuda.uses) == ("usual", set(), True, {0: 1})
    del first


def test_graphs_share_memory_as_long_as_one_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = TorchCuda(monkeypatch)
    graphs, work = CudaGraphs(torch.device("cuda:0")), lambda: None
    replays = [graphs.capture(work), graphs.capture(work)]
    assert cuda.uses == {0: 2}
    replays.clear()  # as `drop` does, after a rollback
    replays.append(graphs.capture(work))
    assert cuda.uses == {0: 0, 1: 1}


SAMPLES = {"audio": 60, "patterns": 30, "reports": 120, "series": 4000, "table": 200}


@pytest.mark.parametrize("name", examples.NAMES)
def test_steps_of_the_example_jobs_are_replayed_with_the_same_bits(tmp_path: Path, name: str) -> None:
    overrides = ["train.batch_size=8"] + (["data.arguments.samples=60"] if name == "own-model" else [])
    if name in SAMPLES:
        samples.write(name, tmp_path / "data", SAMPLES[name])
        file = {"audio": "train", "reports": "reports.csv", "series": "train.csv", "table": "train.parquet"}.get(
            name, ""
        )
        overrides.append(f"data.train={tmp_path / 'data' / file}")
    job = job_spec.load(examples.FOLDER / f"{name}.yaml", overrides)
    run_states = []
    for device in (None, Replayer()):
        run = tiny.assemble_plain_run(job, tmp_path)
        for group in run.optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
        run_states.append(train_epochs(run, device, epochs=1, steps=9))
        assert device is None or device.replays >= 2
    usual, replayed = run_states
    assert replayed.keys() == usual.keys()
    assert [key for key, value in usual.items() if bits(replayed[key]) != bits(value)] == []


def compile_with(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    torch.compiler.reset()
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda network, mode=None: real(network, backend=backend))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_a_compiled_step_is_captured_and_replayed_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    compile_with(monkeypatch, backend)
    run_states, device = [], Replayer()
    for name, recorder in (("usual", None), ("replayed", device)):
        run = assemble_run(tmp_path / name, "ema: 0.5", False)
        compile.apply(run, True)
        run_states.append(train_epochs(run, recorder, 7))
        assert run.step.forward.is_compiled
    usual, replayed = run_states
    assert device.replays >= 6
    assert [key for key, value in usual.items() if bits(replayed[key]) != bits(value)] == []


class ChangingDevice:
    """A device that changes the mode of the network during a capture, so that torch would compile it again."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.network = network

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.network.eval()
        try:
            work()
        finally:
            self.network.train()
        return work


def test_nothing_is_compiled_while_a_step_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the compiler would fail there, and training would continue without compiled kernels."""
    compile_with(monkeypatch, "eager")
    run = assemble_run(tmp_path / "run", "", False)
    compile.apply(run, True)
    assert len(train_epochs(run, ChangingDevice(run.model))["messages"]) == 1
    capture = run.step.capture
    assert capture is not None
    assert "recompile" in capture.failure
    assert (run.step.forward.is_compiled, run.step.forward.is_captured) == (True, False)


def test_kernels_are_not_captured_within_a_captured_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = list[str | None]()

    def note_mode(network: torch.nn.Module, mode: str | None = None) -> Callable[..., Any]:
        def call(*inputs: torch.Tensor) -> Any:
            modes.append(mode)
            return network(*inputs)

        return call

    monkeypatch.setattr(torch, "compile", note_mode)
    run = assemble_run(tmp_path / "run", "", False)
    run.step.compile(graphs=True)
    train_epochs(run, Replayer())
    assert set(modes) == {None}
    assert (compile.effective(run), step_graph.effective(run)) == (True, True)
