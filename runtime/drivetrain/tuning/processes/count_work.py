"""Times a job here, counts what its steps compute, move and keep, and measures what the device can: a child of `drivetrain plan --on`."""

from __future__ import annotations

import contextlib
import io
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from drivetrain.models.flop_counter import count_operation
from drivetrain.optimizations import Value
from drivetrain.training.phase_timer import process_seconds
from drivetrain.training.profiling import MATRIX_SIDE, measure_product
from drivetrain.training.run import Run
from drivetrain.training.torch_setup import synchronize
from drivetrain.tuning import assembly
from drivetrain.tuning.elsewhere.machine_catalog import Rates
from drivetrain.tuning.elsewhere.machine_estimate import StepWork
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.memory.meter import ActivationCount
from drivetrain.tuning.processes.run_times import assemble_longest_epoch, time_run, time_step
from drivetrain.tuning.variants import Variant

RECORDABLE: Mapping[str, Value] = {"compile": False, "cuda_graphs": False, "step_graph": False, "loader_workers": 0}
"""Settings under which every operation can be seen, in this process."""
LOADED_BATCHES = 20
GPU_MATRIX_SIDE = 8192
"""Rows and columns of the matrix product on a GPU."""


def measure(call: MeasuringCall) -> None:
    """Store times and rates of this machine, and the work of a step in fp32 and in bf16."""
    # The training prints the same notes on the data again.
    with contextlib.redirect_stdout(io.StringIO()):
        search = assembly.load_search(call.folder, call.job, call.signals)
        run = assemble_longest_epoch(search)
        is_solved = run.ends_solved  # the timed steps make a run of steps of it
        figures: dict[str, object] = {
            "times": asdict(time_run(run, process_seconds())),
            "rates": asdict(measure_rates(run)),
            "data_bytes": search.facts.samples * search.facts.sample_bytes,
        }
        if not is_solved:
            run = assemble_longest_epoch(search, RECORDABLE)
            figures["load_seconds"] = time_loading(run)
            for precision in ("fp32", "bf16"):
                run = assemble_longest_epoch(search, {**RECORDABLE, "precision": precision})
                if precision == "fp32":
                    figures["fp32_step"] = time_step(run)
                figures[precision] = asdict(count_step_work(run))
    call.store(figures)


def time_loading(run: Run) -> float:
    """Seconds in which this process reads and prepares a batch."""
    batches = Variant.over_epochs(run).batches
    run.preprocess(next(batches), 0)
    begin = time.perf_counter()
    for batch in itertools.islice(batches, LOADED_BATCHES):
        run.preprocess(batch, 0)
    return (time.perf_counter() - begin) / LOADED_BATCHES


MAX_BATCHES, MAX_SECONDS = 8, 10.0
"""Batches that are counted, since texts differ in length; of slow steps, as many as begin within these seconds."""
RECURRENT_PASSES: Mapping[Any, int] = {
    torch.ops.aten.mkldnn_rnn_layer: 1,
    torch.ops.aten.mkldnn_rnn_layer_backward: 2,
}
"""Passes of products in a recurrent layer: the backward pass has those for the inputs and those for the weights."""


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what computes or moves; views and allocations do neither."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[tuple[int, int]] = Counter()
        self.launches = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it."""
        keywords = dict(kwargs or {})
        outputs = func(*args, **keywords)
        moved = sum(t.nbytes for t in _list_tensors((args, keywords, outputs)))
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if moved and not is_view:
            self.launches += 1
            name = func._overloadpacket
            if passes := RECURRENT_PASSES.get(name):
                # One step in time follows the other, on every device.
                inputs, weights, steps = args[0], args[1:5], args[0].shape[0]
                samples = inputs[0].numel() // inputs.shape[-1]
                self.counts[2 * samples * sum(w.numel() for w in weights), moved // steps] += steps * passes
            else:
                self.counts[count_operation(name, args, keywords, outputs), moved] += 1
        return outputs


class SavedTensors:
    """The most bytes that a forward pass keeps; a step has several if its batch is divided.

    Args:
        network_storages: storages of the network's own tensors, which are no activations.
    """

    def __init__(self, network_storages: set[int]) -> None:
        self.network_storages = network_storages
        self.count, self.peak, self.is_backward = ActivationCount(network_storages), 0, False

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that is kept; after a backward pass the next forward pass begins."""
        if self.is_backward:
            self.count, self.is_backward = ActivationCount(self.network_storages), False
        self.count.add(tensor)
        self.peak = max(self.peak, self.count.total)
        return tensor

    def unpack(self, tensor: Tensor) -> Tensor:
        """Take note that the backward pass has begun."""
        self.is_backward = True
        return tensor


def count_step_work(run: Run) -> StepWork:
    """Count the work of training steps on the run's first batches; weights and optimizer are changed by it."""
    variant = Variant.over_epochs(run)
    variant.train_step()  # the first one makes the optimizer's state
    network = [*run.model.parameters(), *run.model.buffers()]
    saved, counter = SavedTensors({t.untyped_storage()._cdata for t in network}), OperationCounter()
    begin, count = time.monotonic(), 0
    while count < MAX_BATCHES and time.monotonic() - begin < MAX_SECONDS:
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack), counter:
            variant.train_step()
        count += 1
    trained = sum(p.nbytes for p in run.model.parameters() if p.requires_grad)
    state = sum(t.nbytes for t in _list_tensors(list(run.step.optimizer.state.values())))
    weights = sum(t.nbytes for t in network)
    return StepWork(
        tuple((flop, moved, number / count) for (flop, moved), number in counter.counts.items()),
        weights * (2 if run.ema else 1) + trained + state,
        saved.peak,
        counter.launches / count,
    )


def measure_rates(run: Run) -> Rates:
    """What the device of a run computes and moves, from large matrix products and a copy."""

    on_gpu = run.device.type == "cuda"
    # A GPU computes a small product in less time than its start takes.
    side = GPU_MATRIX_SIDE if on_gpu else MATRIX_SIDE
    products = [measure_product(run.device, dtype, side) for dtype in (torch.float32, torch.bfloat16)]
    source = torch.zeros(16 << 20, device=run.device)
    target, seconds = torch.empty_like(source), list[float]()
    for _ in range(5):
        begin = time.perf_counter()
        target.copy_(source)
        synchronize(run.device)
        seconds.append(time.perf_counter() - begin)
    return Rates(matmul=products[0], low_matmul=products[1], bandwidth=2 * source.nbytes / min(seconds))


def _list_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _list_tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _list_tensors(part)
