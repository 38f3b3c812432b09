"""What several machines cost and gain: the bytes that they exchange, the link that this needs, the time of a step.

A model with two constants, measured on CPUs with gloo (docs/measurements/exchange-2026-11-23.md). It leaves out latency,
and that small batches use a processor less well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runtime.distributed.world import BUCKET_BYTES
from runtime.system.units import format_rate

WIRE = 0.94
"""Share of a link's rate that gradients get: 25 MB took 423 ms at 500 Mbit/s."""
HIDDEN = 0.5
"""Share of the forward and the backward pass behind which the exchange hides: 0.44 and 0.51 were measured."""
SUMMED = 0.5e9
"""Bytes a second that one CPU sums and copies where the link is faster: 25 MB took 50 ms."""
GOOD = 0.9
"""The efficiency that `needed_link` is for."""
PAYS = 1.1
"""How many times as fast as one machine several have to be before they are worth it."""


@dataclass(frozen=True)
class OneMachine:
    """A step on one machine, in one process, as a run has measured it."""

    run: str
    batch: int
    computing: float
    """Seconds of input, forward and backward pass of a step, which several processes share."""
    updating: float
    """Seconds of the optimizer, which each process does whole."""
    gradients: int
    """Bytes of the gradients of all trained parameters in fp32."""

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.computing + self.updating


@dataclass(frozen=True)
class Scaling:
    """Several machines that train together."""

    one: OneMachine
    nodes: int
    per_node: int
    halved: bool = False
    """Whether gradients travel in bf16."""
    on_cpu: bool = True
    """Whether processors sum the gradients, and not GPUs."""

    @property
    def processes(self) -> int:
        """All of them."""
        return self.nodes * self.per_node

    @property
    def sent(self) -> float:
        """Bytes that each node sends, and receives, in a step: a ring passes the gradients around nearly twice."""
        return 2 * (self.processes - 1) / self.processes * self.one.gradients / (1 + self.halved)

    @property
    def computing(self) -> float:
        """Seconds of a process's share of a batch."""
        return self.one.computing / self.processes

    def waiting(self, link: float) -> float:
        """Seconds of a step in which a process waits for gradients.

        Args:
            link: bits a second that each node can send and receive.
        """
        if self.nodes == 1:
            return self.summing
        last = min(self.sent, BUCKET_BYTES) * 8 / (WIRE * link)
        return max(self.sent * 8 / (WIRE * link) - HIDDEN * self.computing, last, self.summing)

    @property
    def summing(self) -> float:
        """Seconds in which the processors of a process sum gradients."""
        return self.sent / SUMMED if self.on_cpu and self.processes > 1 else 0.0

    def step(self, link: float) -> float:
        """Seconds of a step."""
        return self.computing + self.one.updating + self.waiting(link)

    def efficiency(self, link: float) -> float:
        """The speed, relative to one process times their number; the update of the weights counts as lost, too."""
        return self.one.step / self.processes / self.step(link)

    def needed_link(self) -> float | None:
        """Bits a second from which on the efficiency is GOOD; None if no link gives that."""
        room = self.one.step / self.processes / GOOD - self.computing - self.one.updating
        if room <= 0 or self.summing > room:
            return None
        whole, last = self.sent * 8 / WIRE, min(self.sent, BUCKET_BYTES) * 8 / WIRE
        return max(whole / (room + HIDDEN * self.computing), last / room)


def lines(made: Scaling, link: float | None) -> Iterator[str]:
    """The prediction in words.

    Args:
        made: the machines.
        link: bits a second of each node; None to say only which it would need.
    """
    one, each = made.one, made.one.batch / made.processes
    share = f"{each:.0f}" if each == int(each) else f"{int(each)} or {int(each) + 1}"
    plural = "es" * (made.per_node > 1)
    yield (
        f"  nodes     {made.nodes}, with {made.per_node} process{plural} on each; {share} of {one.batch:,} samples of a batch "
        "for each process"
    )
    size = one.gradients / (1 + made.halved)
    kind = "bf16" if made.halved else "fp32"
    yield f"  gradients {_bytes(size)} a step in {kind}; each node sends and receives {_bytes(made.sent)} a step"
    yield f"  one       {_ms(one.step)} a step in one process ({one.run})"
    needed = made.needed_link()
    if needed is None:
        why = f"{_ms(made.summing)} to sum and {_ms(one.updating)} to update, beside {_ms(made.computing)} to compute"
        yield f"  link      none gives {GOOD:.0%} of {made.processes} times the speed: {why}"
    else:
        yield f"  link      {format_rate(needed)} gives {GOOD:.0%} of {made.processes} times the speed"
    if link is not None:
        gain = one.step / made.step(link)
        verdict = "" if gain >= PAYS else ": it does not pay"
        yield (
            f"  expected  {_ms(made.step(link))} a step at {format_rate(link)}, {_ms(made.waiting(link))} of it waiting: "
            f"{gain:.2g} times as fast as one process, {made.efficiency(link):.0%} efficient{verdict}"
        )


def _bytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"
