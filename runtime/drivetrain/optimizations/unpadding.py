"""Avoids computing the padding of texts, by packing tokens in one row or by micro-batches of similar length.

`packed` puts the real tokens of a batch in one row for all layers; only attention works text by text, on a GPU in one
kernel for all texts. A number splits the batch by length into micro-batches of so many tokens, which contain little
padding. The loss is the whole batch's. With dropout both use different random numbers than the whole batch would,
from the same distribution.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from drivetrain.hardware.facts import Gpu
from drivetrain.job.text import PART_TOKENS, PASS_TOKENS
from drivetrain.optimizations import (
    AssembledRun,
    Choice,
    Effect,
    Hardware,
    Job,
    Stage,
    Value,
    Workload,
    attention,
    feature_cache,
    gradient_checkpointing,
    micro_batch,
    pick_requested,
    precision,
)
from drivetrain.system.units import format_bytes
from drivetrain.tasks import modality_of

STAGE = Stage.STEP
EFFECT = micro_batch.EFFECT
OFF = "off"
REDRAWS = True
PACKED = "packed"
Values = Annotated[int, Field(ge=16)] | Literal["off", "packed"]

MAX_ROW_TOKENS = 2048
"""Largest number of tokens in a row on a CPU; beyond it the fixed cost of a forward pass hardly matters."""
GPU_TOKENS = 65536
"""Tokens of a row or a micro-batch on a GPU, where only memory and the cost of a pass decide about its size."""
KERNEL_SECONDS = 10e-6
"""Time that the host needs to start a kernel."""
BLOCK_SECONDS = 80 * KERNEL_SECONDS
"""Time that it needs to start the forward and backward pass of one encoder block."""
PACKING_KERNELS, MASK_KERNELS = 13, 3
"""Kernels of a step that pack and unpack the texts, and those of each block that make numbers of a mask of padding."""
RATES = {(9, 0): 400e12, (8, 9): 60e12, (8, 6): 25e12, (8, 0): 120e12, (7, 5): 25e12, (7, 0): 50e12, (0, 0): 5e12}
"""FLOP/s of matrix products by capability from which on it applies: 0.4 of the peak of a usual card, which encoders reach
at best. A rate too high splits too little, which costs no more than the padding did.
"""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Turn it on for texts: packed if encoder and memory allow; else cut, on a GPU where padding costs more."""
    obstacle = refuse(job, hardware, workload, PART_TOKENS)
    if obstacle:
        return Choice(OFF, obstacle)
    if EFFECT(workload) is Effect.TRAINING:
        reason = "BatchNorm would see other batches, which changes the training result; used only if requested"
        return Choice(OFF, reason)
    refusal = refuse(job, hardware, workload, PACKED) or _too_large(job, hardware, workload)
    if hardware.gpu is not None:
        return _choose_on_gpu(job, hardware, hardware.gpu, workload, refusal)
    if refusal:
        return Choice(PART_TOKENS, f"groups texts of similar length; not packed: {refusal}")
    return Choice(PACKED, "all tokens of a batch go into one sequence without padding")


def _choose_on_gpu(job: Job, hardware: Hardware, gpu: Gpu, workload: Workload | None, obstacle: str | None) -> Choice:
    """Choose packed rows if computing the padding takes longer than starting the kernels that avoid it."""
    obstacle = obstacle or _no_kernel(job, hardware, workload)
    if obstacle:
        tokens = pass_tokens(hardware, workload)
        reason = f"a batch is cut by length where that saves more than the {tokens:,} tokens of one more pass"
        return Choice(GPU_TOKENS, f"{reason}; not packed: {obstacle}")
    if workload is None or not workload.tokens:
        return Choice(PACKED, "all tokens of a batch go into one sequence without padding")
    real = job.train.batch * workload.tokens
    padding = real * workload.padding / (1 - workload.padding)
    saved = padding * workload.token_work / _rate(gpu)
    extra_kernels = PACKING_KERNELS - MASK_KERNELS * workload.blocks
    figures = (
        f"{padding:,.0f} tokens of padding beside {real:,.0f} real ones in a batch would take {1e3 * saved:.3g} ms, and "
        f"packing {f'takes the host {1e3 * extra_kernels * KERNEL_SECONDS:.3g} ms more' if extra_kernels > 0 else 'starts fewer kernels'}"
    )
    return Choice(PACKED if saved > extra_kernels * KERNEL_SECONDS and padding else OFF, figures)


def _no_kernel(job: Job, hardware: Hardware, workload: Workload | None) -> str | None:
    """Explain why no kernel computes the attention of texts of different lengths at once; None if there is one."""
    kernels = pick_requested(job, "attention", attention.choose(job, hardware, workload))
    numbers = pick_requested(job, "precision", precision.choose(job, hardware, workload))
    if kernels == "math":
        return "attention: math has no kernel for texts of different lengths"
    if kernels == "flash" and numbers not in ("bf16", "fp16"):
        return f"attention: flash has no kernel for {numbers}"
    return None


def _rate(gpu: Gpu) -> float:
    return next(rate for oldest, rate in RATES.items() if gpu.capability >= oldest)


def pass_tokens(hardware: Hardware, workload: Workload | None) -> int:
    """Estimate the cost of one more pass through the network, as a number of tokens that the chip computes meanwhile."""
    if hardware.gpu is None or workload is None or not workload.token_work:
        return PASS_TOKENS
    return max(PASS_TOKENS, round(workload.blocks * BLOCK_SECONDS * _rate(hardware.gpu) / workload.token_work))


def row_tokens(job: Job, hardware: Hardware, workload: Workload) -> int:
    """Return the tokens of a row: on a GPU as many as half of the free memory holds."""
    if hardware.gpu is None or not workload.token_bytes:
        return MAX_ROW_TOKENS
    half = gradient_checkpointing.bytes_for_activations(job, hardware, workload) // 2
    return min(GPU_TOKENS, max(MAX_ROW_TOKENS, half // workload.token_bytes))


def _too_large(job: Job, hardware: Hardware, workload: Workload | None) -> str | None:
    """Explain why rows might take more than half of the free memory; None if they do not."""
    if workload is None:
        return None
    need, spare = (
        MAX_ROW_TOKENS * workload.token_bytes,
        gradient_checkpointing.bytes_for_activations(job, hardware, workload),
    )
    if need > spare / 2:
        return f"one sequence needs up to {format_bytes(need)}, {format_bytes(max(0, spare))} available"
    return None


def lacks(job: Job, hardware: Hardware) -> str | None:
    """Name the missing condition, or None: it applies to texts only."""
    return None if modality_of(job).expected.ragged else "no padding"


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: if texts are not padded; for `packed`, also if the encoder
    does not support it, or is compiled.
    """
    expected = modality_of(job).expected
    if not expected.ragged or not (workload or expected).ragged:
        return "all samples have the same size, so there is no padding"
    if (
        workload is not None
        and workload.prefix
        and not workload.prefix_ragged
        and pick_requested(job, "feature_cache", feature_cache.choose(job, hardware, workload))
    ):
        return "with feature_cache each text is a single vector"
    if value == PACKED and job.optimize.get("compile") in (True, "graphs"):
        return "the job sets compile, and packed sequences have another shape in every step"
    if value == PACKED and workload is not None and not workload.token_bytes:
        return "this encoder mixes tokens in other layers than attention"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """List the values to measure: `packed` against micro-batches if both are possible; the padding that both avoid is
    computed, not measured. On a GPU against the padded batch.
    """
    default = choose(job, hardware, workload).value
    if hardware.gpu is not None and default != OFF:
        return [default, OFF]
    return [PACKED, PART_TOKENS] if default == PACKED else [default]


def apply(run: AssembledRun, value: Value) -> None:
    """Make the step split its batches by length, or into rows that go through the network packed; a GPU where they
    do not is reported, and the batches are split.
    """
    from drivetrain.data.text.length_buckets import TokenSplitter
    from drivetrain.models import inspection
    from drivetrain.models.inspection import inspect_network

    packed = run.step.forward.packed_compute if value == PACKED else None
    workload = inspect_network(run.model)
    if packed and run.hardware.gpu:
        obstacle = inspection.find_packing_obstacle(run.model, run.step.forward.dtype)
        if obstacle:
            run.events.add("unpadding", f"batches are cut by length, not packed: {obstacle}")
            packed, value = None, GPU_TOKENS
        workload = replace(workload, token_bytes=inspection.measure_token_bytes(run.model))
    packs = value == PACKED
    tokens = row_tokens(run.job, run.hardware, workload) if packs else int(value)
    splitter = TokenSplitter(tokens, pass_tokens(run.hardware, workload), in_order=packs)
    run.step.forward.splitter, run.step.forward.usual_size = splitter, None
    if packed:
        run.step.forward.compute, run.step.forward.is_packed = packed, True


def effective(run: AssembledRun) -> Value:
    """Return the tokens per micro-batch of the step, or that its forward pass is packed."""
    from drivetrain.data.text.length_buckets import TokenSplitter

    if run.step.forward.is_packed:
        return PACKED
    splitter = run.step.forward.splitter
    return splitter.tokens if isinstance(splitter, TokenSplitter) else OFF
