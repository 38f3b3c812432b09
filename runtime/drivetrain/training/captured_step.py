"""Captures whole optimizer steps as CUDA graphs and replays them: the host launches one graph instead of each kernel.

Random numbers are the same as without graphs: a replay uses the seed and offset of torch's generator, which is seeded
before. Learning rates are float32 numbers on the device, in all steps of such a run.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from drivetrain.data.dataset import Batch
from drivetrain.distributed.batch_sharding import WHOLE_BATCH
from drivetrain.distributed.ranks import ALONE
from drivetrain.models.compiled_forward import first_line
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.training.step_result import StepResult
from drivetrain.training.updater import Updater

MAX_CAPTURES = 4
"""Largest number of captured steps of one run: mixed batches have other targets than plain ones."""
WARMUP_STEPS = 2
"""Steps of a shape before it is captured: libraries choose kernels and allocate memory in the first steps."""

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Function that captures work, perhaps without computing it, and returns a function that repeats it on its tensors."""


class CudaGraphs:
    """Captures CUDA graphs, which share their memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        """Graphs that can still be replayed."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture the kernels of `work` without computing them; return a function that replays them."""
        graph = torch.cuda.CUDAGraph()
        # Once the last graph of a pool is freed, torch accepts no new graph for that pool.
        shared = next(iter(self.graphs), None)
        pool = shared.pool() if shared else torch.cuda.graph_pool_handle()
        # If a capture fails, torch keeps its stream current: the outer block restores the earlier stream.
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.current_stream(self.device)):
            try:
                # Other threads may pin memory at the same time.
                with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    work()
            except BaseException:
                _end_failed_capture(self.device, pool)
                raise
        self.graphs.add(graph)
        return graph.replay


def _end_failed_capture(device: torch.device, pool: tuple[int, int]) -> None:
    """Clean up after CUDA ended a capture with an error, since torch does not.

    Otherwise its allocator would neither empty its cache nor free memory that two streams have used, and torch 2.7
    would refuse to draw random numbers.
    """
    # The second name is used by torch 2.7.
    names = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
    end_allocation = next(getattr(torch._C, name) for name in names if hasattr(torch._C, name))
    with contextlib.suppress(RuntimeError):  # torch itself has ended it
        end_allocation(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)
    # A copy of the state, unlike the state itself, is not part of a capture.
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(generator.clone_state())


@dataclass
class _CapturedStep:
    """A step for batches of one shape."""

    batch: Batch
    """Fixed tensors that a replay reads."""
    rates: Tensor
    """Learning rates by parameter group, float32."""
    values: Tensor
    """Loss and gradient norm, float64."""
    finite: Tensor
    replay: Callable[[], None] | None = None


class StepCapture:
    """Captures and replays steps of whole batches; all other steps are computed as usual.

    Args:
        capture: function that captures work of the device.
        update_average: function that updates the average of the weights if its argument says that the update was made.
        report: function that is called once if a capture has failed.
    """

    def __init__(
        self, capture: Capture, update_average: Callable[[Tensor], None], report: Callable[[str], None]
    ) -> None:
        self.capture, self.update_average, self.report = capture, update_average, report
        self.failure: str | None = None
        """Reason why nothing is captured any more; None while it works."""
        self.captured_steps: dict[object, _CapturedStep] = {}
        self.step_counts: dict[object, int] = {}
        """Number of steps that were computed as usual, by shape."""

    def drop(self) -> None:
        """Forget all captured steps, because tensors that they use have been replaced."""
        self.captured_steps, self.step_counts = {}, {}

    def replay(self, forward: ForwardPass, updater: Updater, batch: Batch, seed: int) -> StepResult | None:
        """Replay a step and return its result; None if it must be computed as usual."""
        if self.failure is not None or not self._can_replay(forward, updater, batch):
            return None
        key = (*((tuple(x.shape), x.dtype, x.stride()) for x in _list_tensors(batch)), *batch.targets, forward.dtype)
        if key not in self.captured_steps:
            self.step_counts[key] = self.step_counts.get(key, 0) + 1
            if self.step_counts[key] <= WARMUP_STEPS or len(self.captured_steps) == MAX_CAPTURES:
                return None
            self.captured_steps[key] = _prepare_capture(updater, batch)
        captured = self.captured_steps[key]
        # A replay reads only the fixed tensors, so the values of this step are copied into them.
        for fixed, current in zip(_list_tensors(captured.batch), _list_tensors(batch), strict=True):
            fixed.copy_(current)
        captured.rates.copy_(updater.rates_on_device())
        forward.seed_generators(seed)
        if captured.replay is None and not self._try_capture(forward, updater, captured):
            return None
        assert captured.replay is not None
        captured.replay()
        # Clones, because the next replay overwrites the originals.
        values, finite = captured.values.clone(), captured.finite.clone()
        return StepResult(values, finite, on_device=True, on_read=updater.make_read_callback())

    def _can_replay(self, forward: ForwardPass, updater: Updater, batch: Batch) -> bool:
        """Return whether a step has the usual size and needs no decision of the host."""
        last = updater.last_result
        if last is None or not last.on_device:
            self.drop()
            return False
        return not forward.micro_batch and len(batch) == forward.usual_size and updater.can_update_on_device()

    def _try_capture(self, forward: ForwardPass, updater: Updater, captured: _CapturedStep) -> bool:
        def work() -> None:
            updater.buffers.remember_content()
            with forward.restrict_kernels():
                denominators = forward.loss.start_denominators(captured.batch, WHOLE_BATCH, ALONE, forward.device)
                loss = forward.compute_loss(captured.batch, denominators)
                updater.scaler.scale_loss(loss).backward()  # type: ignore[no-untyped-call]
            values, finite = updater.update_in_graph(loss.detach(), captured.rates)
            self.update_average(finite)
            captured.values.copy_(values)
            captured.finite.copy_(finite)

        # A compiler reads the state of the random generators, which a capture forbids: the compilation would fail.
        guard = torch.compiler.set_stance("fail_on_recompile") if forward.is_compiled else contextlib.nullcontext()
        try:
            with guard:
                captured.replay = self.capture(work)
        except RuntimeError as error:
            # Nothing of the step has been computed yet: the caller computes it as usual.
            self.failure, forward.is_captured = first_line(error), False
            self.drop()
            updater.optimizer.zero_grad(set_to_none=True)
            self.report(
                f"a step could not be captured as a CUDA graph; training continues without graphs: {self.failure}"
            )
            return False
        return True


def _list_tensors(batch: Batch) -> list[Tensor]:
    return [*batch.inputs, *batch.targets.values()]


def _prepare_capture(updater: Updater, batch: Batch) -> _CapturedStep:
    fixed = Batch(
        batch.ids, tuple(x.clone() for x in batch.inputs), {name: y.clone() for name, y in batch.targets.items()}
    )
    return _CapturedStep(
        batch=fixed,
        rates=updater.rates_on_device().clone(),
        values=torch.zeros(2, dtype=torch.float64, device=updater.device),
        finite=torch.zeros((), dtype=torch.bool, device=updater.device),
    )
