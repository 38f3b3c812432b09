"""The work of one training step by operation: FLOP and bytes, whatever device computes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain.tuning.elsewhere.known_machines import Rates

if TYPE_CHECKING:
    from torch import Tensor

    from drivetrain.training.run import Run


@dataclass(frozen=True)
class StepWork:
    """What one optimizer step computes and keeps."""

    operations: tuple[tuple[int, int, int], ...]
    """FLOP of matrix products, bytes read and written, and how often."""
    weight_bytes: int
    """Weights, gradients, and the optimizer's state."""
    saved_bytes: int
    """What the forward pass keeps for the backward pass."""
    launches: int
    """Operations that the host starts."""

    def compute_seconds(self, rates: Rates, *, low_precision: bool, least_seconds: float = 0.0) -> float:
        """Seconds of a device that computes or moves, whatever takes longer, one operation after the other.

        The roofline model: Williams, Waterman, Patterson, Communications of the ACM 52 (2009).

        Args:
            rates: of the device.
            low_precision: whether matrix products are in bf16 or fp16.
            least_seconds: of one operation, however small.
        """
        matmul = rates.low_matmul if low_precision else rates.matmul
        return sum(
            count * max(least_seconds, flop / matmul, moved / rates.bandwidth) for flop, moved, count in self.operations
        )


def count_step_work(run: Run) -> StepWork:
    """Count the work of a training step on the run's next batch; weights and optimizer are changed by it."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    from drivetrain.tuning.memory.meter import ActivationCount

    counts: Counter[tuple[int, int]] = Counter()
    launches = 0

    class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Counts what computes or moves; views and allocations do neither."""

        def __torch_dispatch__(
            self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            nonlocal launches
            keywords = dict(kwargs or {})
            outputs = func(*args, **keywords)
            if not _is_view(func) and (moved := sum(t.nbytes for t in _list_tensors((args, keywords, outputs)))):
                launches += 1
                name = func._overloadpacket
                if name in recurrent:
                    # One step in time follows the other, on every device.
                    input, weights, steps = args[0], args[1:5], args[0].shape[0]
                    flop = recurrent[name] * 2 * input[0].numel() // input.shape[-1] * sum(w.numel() for w in weights)
                    counts[flop, moved // steps] += steps * recurrent[name]
                else:
                    formula = flop_registry.get(name)
                    counts[formula(*args, **keywords, out_val=outputs) if formula else 0, moved] += 1
            return outputs

    # Passes of products in it: the backward pass has those for the inputs and those for the weights.
    recurrent = {torch.ops.aten.mkldnn_rnn_layer: 1, torch.ops.aten.mkldnn_rnn_layer_backward: 2}
    run.train_mode()
    batch = next(iter(run.batches.epoch(0, 0)))
    saved = ActivationCount({t.untyped_storage()._cdata for t in (*run.model.parameters(), *run.model.buffers())})

    def record_saved(tensor: Tensor) -> Tensor:
        saved.add(tensor)
        return tensor

    def train_step() -> None:
        run.set_learning_rates()
        run.step(run.mix(run.preprocess(batch, 0)), run.list_local_parts(len(batch)))

    train_step()  # the first one makes the optimizer's state
    with torch.autograd.graph.saved_tensors_hooks(record_saved, lambda tensor: tensor), OperationCounter():  # type: ignore[no-untyped-call]
        train_step()
    trained = sum(p.nbytes for p in run.model.parameters() if p.requires_grad)
    state = sum(t.nbytes for t in _list_tensors(list(run.step.optimizer.state.values())))
    every = sum(t.nbytes for t in (*run.model.parameters(), *run.model.buffers()))
    operations = tuple((flop, moved, count) for (flop, moved), count in counts.items())
    return StepWork(operations, every + trained + state, saved.total, launches)


def measure_rates(run: Run) -> Rates:
    """What the device of a run computes and moves, from large matrix products and a copy."""
    import time

    import torch

    def measure(call: Callable[[], object]) -> float:
        seconds = []
        for _ in range(5):
            begin = time.perf_counter()
            call()
            if run.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        return min(seconds)

    size = 8192 if run.device.type == "cuda" else 1024
    flop = 2 * size**3
    matrix = torch.randn(size, size, device=run.device)
    low_matrix = matrix.to(torch.bfloat16)
    rates = {
        "matmul": flop / measure(lambda: matrix @ matrix),
        "low_matmul": flop / measure(lambda: low_matrix @ low_matrix),
    }
    source = torch.zeros(16 << 20, device=run.device)
    target = torch.empty_like(source)
    return Rates(**rates, bandwidth=2 * source.nbytes / measure(lambda: target.copy_(source)))


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _list_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _list_tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _list_tensors(part)
