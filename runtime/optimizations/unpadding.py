"""Avoids computing the padding of texts, by packing tokens in one row or by micro-batches of similar length.

`packed` puts the real tokens of a batch in one row for all layers; only attention works text by text. A number splits
the batch by length into micro-batches of so many tokens, which contain little padding. The loss is that of the whole
batch. With dropout both use different random numbers than the whole batch would, from the same distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from runtime.job.text import PART_TOKENS, PASS_TOKENS
from runtime.optimizations import (
    AssembledRun,
    Choice,
    Effect,
    Stage,
    Value,
    feature_cache,
    gradient_checkpointing,
    micro_batch,
    wanted,
)
from runtime.optimizations.interface import similar_work
from runtime.system.units import format_bytes

if TYPE_CHECKING:
    from runtime.hardware.calibration import Probe
    from runtime.hardware.facts import Hardware
    from runtime.job import Job
    from runtime.job.workload import Workload

STAGE = Stage.STEP
OFF = "off"
REDRAWS = True
PACKED = "packed"
Values = Annotated[int, Field(ge=16)] | Literal["off", "packed"]

ROW = 2048
"""Largest number of tokens in a row; beyond it the fixed cost of a forward pass hardly matters."""
GPU_TOKENS = 65536
"""Tokens of a micro-batch on a GPU, where only the cost of a pass decides about its size."""
BLOCK_SECONDS = 80 * 10e-6
"""What the host needs to start the forward and backward pass of one encoder block: 80 kernels of 10 microseconds."""
RATES = {(9, 0): 400e12, (8, 9): 60e12, (8, 6): 25e12, (8, 0): 120e12, (7, 5): 25e12, (7, 0): 50e12, (0, 0): 5e12}
"""FLOP/s of matrix products by capability from which on it applies: 0.4 of the peak of a usual card, which encoders reach
at best. A rate too high splits too little, which costs no more than the padding did.
"""


def EFFECT(workload: Workload | None) -> Effect:
    """The same as for every split of a batch."""
    return micro_batch.EFFECT(workload)


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """On for texts: on a CPU packed if encoder and memory allow; on a GPU cut where padding costs more than a pass."""
    obstacle = refuse(job, hardware, workload, PART_TOKENS)
    if obstacle:
        return Choice(OFF, obstacle)
    if EFFECT(workload) is Effect.TRAINING:
        return Choice(
            OFF, "BatchNorm would see other batches, which changes the training result; used only if requested"
        )
    if hardware.gpu is not None:
        tokens = pass_tokens(hardware, workload)
        return Choice(
            GPU_TOKENS, f"a batch is cut by length where that saves more than the {tokens:,} tokens of one more pass"
        )
    why = refuse(job, hardware, workload, PACKED) or _too_large(job, hardware, workload)
    if why:
        return Choice(PART_TOKENS, f"groups texts of similar length; not packed: {why}")
    return Choice(PACKED, "all tokens of a batch go into one sequence without padding")


def pass_tokens(hardware: Hardware, workload: Workload | None) -> int:
    """What one more pass through the network costs, as a number of tokens that the chip computes meanwhile."""
    if hardware.gpu is None or workload is None or not workload.token_work:
        return PASS_TOKENS
    capability = hardware.gpu.capability
    rate = next(rate for oldest, rate in RATES.items() if capability >= oldest)
    return max(PASS_TOKENS, round(workload.blocks * BLOCK_SECONDS * rate / workload.token_work))


def _too_large(job: Job, hardware: Hardware, workload: Workload | None) -> str | None:
    """Why not, if rows might take more than half of the free memory; else None."""
    if workload is None:
        return None
    need, left = ROW * workload.token_bytes, gradient_checkpointing.spare(job, hardware, workload)
    return (
        f"one sequence needs up to {format_bytes(need)}, {format_bytes(max(0, left))} available"
        if need > left / 2
        else None
    )


def lacks(job: Job, hardware: Hardware) -> str | None:
    """Applies to texts only."""
    return None if job.task.startswith("text") else "no padding"


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """If texts are not padded; for `packed`, also if the encoder does not support it, or is compiled."""
    if value == OFF:
        return None
    if not job.task.startswith("text") or (workload is not None and not workload.ragged):
        return "all samples have the same size, so there is no padding"
    if (
        workload is not None
        and workload.prefix
        and not workload.prefix_ragged
        and wanted(job, "feature_cache", feature_cache.choose(job, hardware, workload))
    ):
        return "with feature_cache each text is a single vector"
    if value == PACKED and job.optimize.get("compile") is True:
        return "the job sets compile, and packed sequences have another shape in every step"
    if value == PACKED and workload is not None and not workload.token_bytes:
        return "this encoder mixes tokens in other layers than attention"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """`packed` against micro-batches if both are possible; the padding that both avoid is computed, not measured. On a
    GPU against the padded batch.
    """
    chosen = choose(job, hardware, workload).value
    if chosen == GPU_TOKENS:
        return [GPU_TOKENS, OFF]
    return [PACKED, PART_TOKENS] if chosen == PACKED else [chosen]


def probed(job: Job, hardware: Hardware, workload: Workload | None) -> tuple[Probe, ...]:
    """One encoder layer over a batch of short texts, in the number format of the job."""
    if hardware.calibration is None:
        return ()
    asked = job.optimize.get("precision", "auto")
    beside = "" if asked in ("auto", "fp32") else f"precision={asked}"
    return hardware.calibration.nearest("unpadding", "texts", similar_work.size(workload), beside)


def apply(run: AssembledRun, value: Value) -> None:
    """Make the step split its batches by length, or into rows that go through the network packed."""
    from runtime.data.text.length_buckets import TokenSplitter
    from runtime.models.inspection import inspect_network

    packs = value == PACKED
    cost = pass_tokens(run.hardware, inspect_network(run.model)) if run.hardware.gpu else PASS_TOKENS
    splitter = TokenSplitter(ROW if packs else int(value), cost, in_order=packs)
    run.configure_step(splitter=splitter, batch_size=None)
    if packs and (packed := run.step.options.packed_forward):
        run.configure_step(forward=packed, packed=True)


def effective(run: AssembledRun) -> Value:
    """Tokens per micro-batch of the step, or that its forward pass is packed."""
    from runtime.data.text.length_buckets import TokenSplitter

    if run.step.options.packed:
        return PACKED
    splitter = run.step.options.splitter
    return splitter.tokens if isinstance(splitter, TokenSplitter) else OFF
