"""Rules about several processes: one that the others wait for, and an exchange that takes too much of the time."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.report.advice.recommendation import SHORT, Advice, Rule, at, decided, less_time
from runtime.report.formatting import share, shown
from runtime.report.record import Record
from runtime.report.sections.ranks import starves, words
from runtime.report.summary import Summary
from runtime.tracking.rank_record import exchange_share, slowest, usual_speed

COSTLY = 0.2
"""Share of the time in the exchange from which on something else may pay."""


def _slow_rank(record: Record, summary: Summary) -> Iterator[Advice]:
    """One process is slower than the others, which wait for it at each step."""
    last = slowest(record.ranks)
    if last is None or (summary.seconds or 0.0) < SHORT:
        return
    lost = 1 - last.speed / usual_speed(record.ranks, last)
    node, workers = shown(last.node), decided(record).get("loader_workers")
    if starves(last) and isinstance(workers, int):
        change, line = f"read data faster on {node}", f"optimize: {{loader_workers: {workers + 1}}}"
    else:
        change = f"find out what slows {node}"
        line = "none: look there for other processes, a throttled or hot chip, a slow disk; or leave that machine out"
    yield Advice(change, words(record.ranks), less_time(lost), line, lost * last.seconds)


def _exchange(record: Record, summary: Summary) -> Iterator[Advice]:
    """Sending gradients takes a large part of each step."""
    part = exchange_share(record.ranks)
    if part < COSTLY or (summary.seconds or 0.0) < SHORT:
        return
    seconds = part * min(one.seconds for one in record.ranks)
    why = f"the exchange between {len(record.ranks)} processes takes at least {share(part)} of the time of each"
    if len({one.node for one in record.ranks}) > 1 and decided(record).get("exchange_precision") == "fp32":
        what = "send gradients in bf16, half as many bytes; they are rounded"
        yield Advice(what, why, less_time(part / 2), "optimize: {exchange_precision: bf16}", seconds / 2)
    elif at(record.spec, "train", "batch_size") != "auto":
        what = "use larger batches, which exchange less often per sample; they change what is learned"
        yield Advice(what, why, less_time(part / 2), "train: {batch_size: auto}", seconds / 2)


RANK_RULES: tuple[Rule, ...] = (_slow_rank, _exchange)
