"""What a training on a GPU can reach: ceilings of the card, loops by hand, and the kernels of a step of ours."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from drivetrain.data.load_data import load
from drivetrain.hardware import gpu_selection
from drivetrain.hardware.detect import detect
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.plan import plan
from drivetrain.system.signals import Signals
from drivetrain.training import batch_inputs
from drivetrain.training.assemble import Assembly
from drivetrain.training.run import Run

Figures = dict[str, Any]
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
WARM_UP_STEPS = 12
"""Steps before the clock starts."""
CHECKED_STEPS = 20 if CUDA else 2
"""Steps whose bits are compared."""
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "Memcpy HtoD (Pageable -> Device)")
"""Calls in which the host stands still until the GPU has done something."""


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if CUDA:
        torch.cuda.synchronize()


def _time_call(work: Callable[[], object], count: int) -> float:
    """Seconds of one call, on average over `count` after three."""
    for _ in range(3):
        work()
    synchronize()
    start = time.perf_counter()
    for _ in range(count):
        work()
    synchronize()
    return (time.perf_counter() - start) / count


def measure_ceilings(*, trial: bool) -> Figures:
    """Launch cost in us, products in TFLOP/s, copies in GB/s; on a GPU also whether a copy overlaps with products."""
    side, size = (8192, 256 << 20) if CUDA and not trial else (256, 4 << 20)
    figures: Figures = {"cuda": torch.version.cuda, "architectures": torch.cuda.get_arch_list() if CUDA else []}
    small = torch.ones(16, device=DEVICE)
    start = time.perf_counter()
    for _ in range(2000):
        small.add_(1)
    figures["launch_us"] = (time.perf_counter() - start) / 2000 * 1e6  # of the host: the GPU is not waited for
    for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16))[: 3 if CUDA else 1]:
        left, right = (torch.randn(side, side, device=DEVICE).to(dtype) for _ in range(2))
        figures[f"gemm_tflops_{name}"] = 2 * side**3 / _time_call(lambda a=left, b=right: a @ b, 10) / 1e12  # type: ignore[misc]
    source = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    target, host = torch.empty_like(source), torch.empty(size // 4, dtype=torch.uint8)
    figures["copy_gbs"] = 2 * size / _time_call(lambda: target.copy_(source), 10) / 1e9
    part = source[: len(host)]
    figures["to_device_pageable_gbs"] = len(host) / _time_call(lambda: part.copy_(host, non_blocking=True), 5) / 1e9
    if CUDA:
        pinned = host.pin_memory()
        figures["to_device_pinned_gbs"] = (
            len(host) / _time_call(lambda: part.copy_(pinned, non_blocking=True), 10) / 1e9
        )
        figures["copy_with_products_ms"] = _measure_overlap(part, pinned)
    return figures


def _measure_overlap(target: Tensor, pinned: Tensor) -> dict[str, float]:
    """Milliseconds of a copy and twenty products, on one stream and with the copy on a second one."""
    values, second = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16), torch.cuda.Stream()

    def work(stream: torch.cuda.Stream | None) -> None:
        with torch.cuda.stream(stream) if stream else nullcontext():
            target.copy_(pinned, non_blocking=True)
        for _ in range(20):
            values @ values

    return {
        "one stream": _time_call(lambda: work(None), 10) * 1e3,
        "two streams": _time_call(lambda: work(second), 10) * 1e3,
    }


@dataclass
class Task:
    """A network with all samples of its training data as tensors on the device."""

    job: Any
    model: nn.Module
    inputs: tuple[Tensor, ...]
    targets: Tensor
    lengths: Tensor | None
    """Tokens of each text, on the host; None for other tasks."""

    @property
    def has_images(self) -> bool:
        """Whether samples are images."""
        return bool(self.job.task.startswith("image"))

    def prepare(self, inputs: tuple[Tensor, ...], longest: int | None) -> tuple[Tensor, ...]:
        """Images as floats in channels_last layout, texts without the columns that are padding in all of them."""
        if self.has_images:
            pixels = inputs[0].float().div_(255).sub_(0.5).div_(0.25)
            # Not on a CPU, where a trial's narrow convolutions would meet a bug of oneDNN in this layout.
            return (pixels.contiguous(memory_format=torch.channels_last) if CUDA else pixels,)
        return tuple(x[:, :longest] for x in inputs) if longest else inputs

    def order(self) -> Iterator[Tensor]:
        """Whole batches of sample numbers, shuffled anew in each epoch."""
        while True:
            yield from (ids for ids in torch.randperm(len(self.targets)).split(self.batch) if len(ids) == self.batch)

    @property
    def batch(self) -> int:
        """Samples of a batch."""
        return int(self.job.train.batch)


def load_task(path: Path) -> Task:
    """The task of a job file; weights are those of seed 0."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    job = job_spec.load(path)
    data = load(job)
    model = build(job, data).module.to(DEVICE).train()
    inputs = tuple(x.to(DEVICE) for x in data.train.gather(np.arange(len(data.train))))
    targets = next(iter(data.train.targets.values())).to(DEVICE)
    lengths = inputs[-1].sum(1).cpu() if job.task.startswith("text") else None
    task = Task(job, model, inputs, targets, lengths)
    if task.has_images and CUDA:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return task


def first_tensor(outputs: Any) -> Tensor:
    """The outputs of a network with one head."""
    return outputs if isinstance(outputs, Tensor) else next(iter(outputs.values()))


class Loop:
    """A step by hand: gather, prepare, bf16 forward pass, loss, backward pass, clip, fused AdamW."""

    def __init__(self, task: Task, forward: Callable[..., Any], *, capturable: bool) -> None:
        self.task, self.forward = task, forward
        rate = torch.tensor(task.job.train.optimizer.lr, device=DEVICE) if capturable else task.job.train.optimizer.lr
        self.parameters = list(task.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=rate, fused=True, capturable=capturable)

    def step(self, ids: Tensor, longest: int | None = None) -> Tensor:
        """Train on these samples, whose numbers are on the device; returns the loss."""
        task = self.task
        inputs = task.prepare(tuple(x.index_select(0, ids) for x in task.inputs), longest)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):  # a trial's CPU may have to emulate bf16
            outputs = first_tensor(self.forward(*inputs))
        loss = functional.cross_entropy(outputs.float(), task.targets.index_select(0, ids))
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def capture(work: Callable[[], Tensor], warm_up: int = 5) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Record work as a graph after a warm-up on a stream of its own; returns it with the tensor that it fills."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        filled = work()
    return graph, filled


def measure_loop(path: Path, kind: str, seconds: float) -> Figures:
    """Speed, memory and kernels of a loop by hand; `kind` is eager, compiled or graph."""
    task = load_task(path)
    torch.backends.cudnn.benchmark = task.has_images
    forward = torch.compile(task.model, dynamic=False) if kind == "compiled" else task.model
    graphed = kind == "graph" and CUDA
    if graphed and task.lengths is not None:
        forward = _without_mask(task.model)
    loop, order = Loop(task, forward, capturable=graphed), task.order()
    begin = time.perf_counter()
    run = _graphed_run(loop, order) if graphed else _eager_run(loop, order)
    run()
    synchronize()
    first = time.perf_counter() - begin
    for _ in range(WARM_UP_STEPS if CUDA else 2):
        run()
    figures = _time_run(run, task, seconds) | {"first_seconds": first}
    return figures | (count_kernels(run) if CUDA and not graphed else {})


def _without_mask(model: Any) -> Callable[..., Any]:
    """A text network that shows its mask to no layer, since transformers reads one, which no graph may: every text is as
    long as the longest, so the row shows the cost of launches and not that of padding.
    """
    return lambda ids, mask: model.outputs(model.pooled(model.encoder(input_ids=ids).last_hidden_state, mask))


def _eager_run(loop: Loop, order: Iterator[Tensor]) -> Callable[[], tuple[Tensor, Tensor]]:
    lengths = loop.task.lengths

    def run() -> tuple[Tensor, Tensor]:
        ids = next(order)
        longest = int(lengths[ids].max()) if lengths is not None else None
        return loop.step(ids.to(DEVICE, non_blocking=True), longest), ids

    return run


def _graphed_run(loop: Loop, order: Iterator[Tensor]) -> Callable[[], tuple[Tensor, Tensor]]:
    static = torch.zeros(loop.task.batch, dtype=torch.int64, device=DEVICE)
    graph, loss = capture(lambda: loop.step(static))

    def run() -> tuple[Tensor, Tensor]:
        ids = next(order)
        static.copy_(ids.pin_memory(), non_blocking=True)
        graph.replay()
        return loss, ids

    return run


def _time_run(run: Callable[[], tuple[Tensor, Tensor]], task: Task, seconds: float) -> Figures:
    synchronize()
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    tokens = steps = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or steps < 3:
        loss, ids = run()
        steps += 1
        tokens += int(task.lengths[ids].sum()) if task.lengths is not None else 0
        if steps % 8 == 0:
            synchronize()
    synchronize()
    elapsed = time.perf_counter() - start
    figures: Figures = {"samples_per_second": steps * task.batch / elapsed, "ms_per_step": elapsed / steps * 1e3}
    figures |= {"steps": steps, "loss": float(loss)}
    if tokens:
        figures["real_tokens_per_second"] = tokens / elapsed
    return figures | ({"peak_bytes": torch.cuda.max_memory_allocated()} if CUDA else {})


def count_kernels(run: Callable[[], object], count: int = 4) -> Figures:
    """Kernels of a step, their milliseconds, and how often the host waits."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(count):
            run()
        synchronize()
    rows = profiled.key_averages()
    kernels = [row for row in rows if row.self_device_time_total and row.key not in WAITS]
    waits = sum(row.count for row in rows if row.key.startswith(WAITS))
    return {
        "kernels_per_step": sum(row.count for row in kernels) / count,
        "kernel_ms_per_step": sum(row.self_device_time_total for row in kernels) / count / 1e3,
        "waits_per_step": max(0, waits - 1) / count,  # the last one is the wait above
    }


def compare_bits(path: Path) -> Figures:
    """Train twice from the same weights, eagerly and by replays of a graph, with random numbers drawn in each step."""
    task = load_task(path)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    other = copy.copy(task)
    other.model = copy.deepcopy(task.model)
    static = torch.zeros(task.batch, dtype=torch.int64, device=DEVICE)
    eager, replayed = (Loop(part, part.model, capturable=CUDA) for part in (task, other))
    graph, filled = _capture_and_restore(replayed, static) if CUDA else (None, None)
    largest = 0.0
    for number in range(CHECKED_STEPS):
        generator = torch.Generator().manual_seed(number)
        static.copy_(torch.randperm(len(task.targets), generator=generator)[: len(static)])
        torch.manual_seed(number)
        expected = eager.step(static)
        torch.manual_seed(number)
        if graph is not None and filled is not None:
            graph.replay()
        loss = filled if filled is not None else replayed.step(static)
        largest = max(largest, abs(float(expected) - float(loss)))
    pairs = zip(task.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return {"same_bits": all(torch.equal(a, b) for a, b in pairs), "largest_difference_of_loss": largest}


def _capture_and_restore(loop: Loop, static: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of the step, with weights and moments as before the warm-up, in the tensors that the graph knows."""
    before = {name: value.clone() for name, value in loop.task.model.state_dict().items()}
    graph, filled = capture(lambda: loop.step(static))
    loop.task.model.load_state_dict(before)
    for state in loop.optimizer.state.values():
        for value in state.values():
            value.zero_()
    return graph, filled


def assemble_run(path: Path, folder: Path, assignments: Sequence[str] = ()) -> Run:
    """The run of a job in this process, under the plan for this machine.

    Raises:
        SpecError: if the job, or an assignment of `--set`, is not possible here.
    """
    job = job_spec.load(path, assignments)
    machine = gpu_selection.select_gpus(detect(folder), job.limits.gpus)
    data = load(job)
    network = build(job, data)
    decisions = plan.resolve(job, machine, inspection.inspect_workload(data, network.module))
    return Assembly(job, machine, decisions, folder, data, network, Signals()).assemble()


def count_kernels_of_ours(path: Path, folder: Path) -> Figures:
    """Kernels, their time and waits of a step under the plan for this machine, as the runtime's loop does it."""
    run = assemble_run(path, folder)
    run.train_mode()
    batches, results = (batch for epoch in itertools.count() for batch in run.batches.epoch(epoch)), []

    def step() -> None:
        run.rates.set(run.counters, run.best_metric.factor())
        results.append(run.step(batch_inputs.prepare(run, next(batches), 0), batch_inputs.share_batch(run)))
        run.counters.step += 1
        if len(results) > 1:
            results.pop(0).read()

    for _ in range(4 if CUDA else 1):
        step()
    return count_kernels(step) if CUDA else {"missing": "kernels are counted on a GPU"}
