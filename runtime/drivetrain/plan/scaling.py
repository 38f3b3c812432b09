"""What several machines cost and gain: the bytes that they exchange, the link that this needs, the time of a step.

A model of a few constants; each says where it was measured, or that it is assumed. It leaves out that small batches
use a processor less well, that one process may be slower than the others, and other traffic on the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from drivetrain.distributed.world import BUCKET_BYTES, GPU_BUCKET_BYTES
from drivetrain.system.units import format_rate

WIRE_SHARE = 0.94
"""Share of a link's rate that gradients get: 25 MB took 423 ms at 500 Mbit/s."""
HIDDEN_SHARE = 0.5
"""Share of the forward and the backward pass behind which the exchange hides: 0.44 and 0.51 were measured."""
SUMMED_BYTES_PER_SECOND = 0.5e9
"""Bytes a second that one CPU sums and copies where the link is faster: 25 MB took 50 ms."""
TCP_LATENCY_SECONDS = 50e-6
"""Seconds that a message takes from one process to the next through TCP: assumed."""
FABRIC_LATENCY_SECONDS = 10e-6
"""Seconds from one GPU to one on another node: assumed."""
NVLINK_BYTES_PER_SECOND = 300e9
"""Bytes a second that a GPU sends to others of its node: assumed, two thirds of what the data sheet of the H100 says."""
ASSUMED_BLOCKS = 32
"""Parts of a network with divided weights that are gathered one after another: assumed, as many as a large one has layers."""
BYTES_PER_PARAMETER = 16
"""Bytes of a trained parameter with AdamW in fp32: weight, gradient and two moments."""
GOOD_EFFICIENCY = 0.9
"""The efficiency that `needed_link` is for."""
WORTHWHILE_SPEEDUP = 1.1
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
    state: int = 0
    """Bytes of all weights, and of the gradients and the optimizer's state of trained ones, in fp32."""

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
    sharded: bool = False
    """Whether each process holds a part of weights, gradients and optimizer state."""

    @property
    def processes(self) -> int:
        """All of them."""
        return self.nodes * self.per_node

    @property
    def sent(self) -> float:
        """Bytes that each node sends, and receives, in a step: a ring passes the gradients around nearly twice. Divided
        weights are gathered for the forward and again for the backward pass, and their gradients are summed once.
        """
        return (3 if self.sharded else 2) * (self.processes - 1) / self.processes * self._size

    @property
    def _size(self) -> float:
        return self.one.gradients / (1 + self.halved)

    @property
    def _rounds(self) -> int:
        """Collectives of a step that carry gradients or weights."""
        bucket = BUCKET_BYTES if self.on_cpu else GPU_BUCKET_BYTES
        return 3 * ASSUMED_BLOCKS if self.sharded else max(1, math.ceil(self._size / bucket))

    @property
    def _delay(self) -> float:
        """Seconds that a collective takes for an empty message: a ring on CPUs, a tree over the nodes of GPUs."""
        if self.on_cpu:
            return 2 * (self.processes - 1) * TCP_LATENCY_SECONDS
        return 2 * math.ceil(math.log2(self.nodes)) * FABRIC_LATENCY_SECONDS

    @property
    def agreeing(self) -> float:
        """Seconds of the small collective with which all agree on a step, a ring of processors also among GPUs."""
        return (self.processes - 1) * TCP_LATENCY_SECONDS

    @property
    def held(self) -> float:
        """Bytes of weights, gradients and optimizer state that each process holds."""
        return self.one.state / (self.processes if self.sharded else 1)

    def _traveling(self, size: float, link: float) -> float:
        """Seconds that so many bytes take between the nodes, or between the GPUs of one."""
        return size / NVLINK_BYTES_PER_SECOND if self.nodes == 1 else size * 8 / (WIRE_SHARE * link)

    @property
    def computing(self) -> float:
        """Seconds of a process's share of a batch."""
        return self.one.computing / self.processes

    def waiting(self, link: float) -> float:
        """Seconds of a step in which a process waits for gradients.

        Args:
            link: bits a second that each node can send and receive.
        """
        if self.processes == 1:
            return 0.0
        if self.nodes == 1 and self.on_cpu:
            return self.summing + self.agreeing
        transfer_seconds = self._traveling(self.sent, link) + self._rounds * self._delay
        last = self._traveling(self.sent / self._rounds, link) + self._delay
        return max(transfer_seconds - HIDDEN_SHARE * self.computing, last, self.summing) + self.agreeing

    @property
    def summing(self) -> float:
        """Seconds in which the processors of a process sum gradients."""
        return self.sent / SUMMED_BYTES_PER_SECOND if self.on_cpu and self.processes > 1 else 0.0

    def step(self, link: float) -> float:
        """Seconds of a step."""
        return self.computing + self.updating + self.waiting(link)

    def efficiency(self, link: float) -> float:
        """The speed, relative to one process times their number; the update of the weights counts as lost, too."""
        return self.one.step / self.processes / self.step(link)

    def needed_link(self) -> float | None:
        """Bits a second from which on the efficiency is GOOD_EFFICIENCY; None if no link gives that."""
        room = self.one.step / self.processes / GOOD_EFFICIENCY - self.computing - self.updating - self.agreeing
        early = room + HIDDEN_SHARE * self.computing - self._rounds * self._delay
        after_last = room - self._delay
        if min(room - self.summing, early, after_last) <= 0:
            return None
        total_bits = self.sent * 8 / WIRE_SHARE
        return max(total_bits / early, total_bits / self._rounds / after_last)

    @property
    def updating(self) -> float:
        """Seconds of the optimizer, which updates all weights in each process, or its part of them."""
        return self.one.updating / (self.processes if self.sharded else 1)


def lines(scaling: Scaling, link: float | None, room: int | None = None) -> Iterator[str]:
    """The prediction in words.

    Args:
        scaling: the machines.
        link: bits a second of each node; None to say only which it would need.
        room: bytes that one GPU has; None without GPUs.
    """
    one, samples_each = scaling.one, scaling.one.batch / scaling.processes
    share = (
        f"{samples_each:.0f}"
        if samples_each == int(samples_each)
        else f"{int(samples_each)} or {int(samples_each) + 1}"
    )
    plural = "es" if scaling.per_node > 1 else ""
    yield (
        f"  nodes     {scaling.nodes}, with {scaling.per_node} process{plural} on each; {share} of {one.batch:,} samples of a batch "
        "for each process"
    )
    size = one.gradients / (1 + scaling.halved)
    kind = "bf16" if scaling.halved else "fp32"
    yield f"  gradients {_bytes(size)} a step in {kind}; each node sends and receives {_bytes(scaling.sent)} a step"
    yield f"  memory    {_memory(scaling, room)}"
    yield f"  one       {duration(one.step)} a step in one process ({one.run})"
    needed = scaling.needed_link()
    if needed is None:
        limit = f"{duration(scaling.summing)} to sum and {duration(scaling.updating)} to update, beside {duration(scaling.computing)} to compute"
        yield f"  link      none gives {GOOD_EFFICIENCY:.0%} of {scaling.processes} times the speed: {limit}"
    else:
        yield f"  link      {format_rate(needed)} gives {GOOD_EFFICIENCY:.0%} of {scaling.processes} times the speed"
    if link is not None:
        gain = one.step / scaling.step(link)
        verdict = "" if gain >= WORTHWHILE_SPEEDUP else ": it does not pay"
        yield (
            f"  expected  {duration(scaling.step(link))} a step at {format_rate(link)}, {duration(scaling.waiting(link))} of it waiting: "
            f"{gain:.2g} times as fast as one process, {scaling.efficiency(link):.0%} efficient{verdict}"
        )


def _bytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"


def _memory(scaling: Scaling, room: int | None) -> str:
    state_text = f"{_bytes(scaling.one.state)} of weights, gradients and optimizer state"
    full = f", which does not fit one GPU of {_bytes(room)}" if room is not None and scaling.one.state > room else ""
    if scaling.sharded:
        small = (
            ""
            if room is None or scaling.held <= room
            else f", and still too much for one: take {scaling.one.state // room + 1}"
        )
        return (
            f"{state_text}{full}: sharding; each of {scaling.processes} processes holds {_bytes(scaling.held)}{small}"
        )
    return f"{state_text} in each process"


def duration(seconds: float) -> str:
    """A time with three digits."""
    return f"{seconds * 1000:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"
