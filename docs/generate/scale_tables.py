"""The tables of docs/scale.md: the constants of the model, and the time of a step from 1 to 512 GPUs, put into their place.

python -m docs.generate.scale_tables docs/scale.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.plan import scaling
from runtime.plan.scaling import OneMachine, Scaling

PER_NODE = 8
GPUS = (1, 8, 16, 64, 512)
LINKS = (10e9, 100e9, 400e9)
MEMORY = 80e9
"""Bytes of a GPU."""
_BLOCK = re.compile(r"(?<=<!-- computed by docs/generate/scale_tables.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Network:
    """A network, and its step on one GPU with the batch that each GPU gets."""

    name: str
    parameters: float
    samples: int
    step: float
    """Seconds."""
    source: str

    def on(self, gpus: int) -> Scaling:
        """So many GPUs, on nodes of eight; divided if its state does not fit one of them."""
        state = int(scaling.STATE * self.parameters)
        one = OneMachine("", gpus * self.samples, gpus * self.step, 0.0, int(4 * self.parameters), state)
        nodes = -(-gpus // PER_NODE)
        return Scaling(one, nodes, gpus // nodes, on_cpu=False, sharded=self.is_divided)

    @property
    def is_divided(self) -> bool:
        """Whether one GPU cannot hold weights, gradients and optimizer state."""
        return scaling.STATE * self.parameters > MEMORY


_H100 = "[measured](measurements/gpu-nvidia-h100-80gb-hbm3-2026-11-22.md) on an H100, bf16"
NETWORKS = (
    Network("ResNet-50, 224 px", 25.6e6, 64, 0.0340, f"64 images a GPU, {_H100}"),
    Network("BERT-base-shaped, 256 tokens", 110e6, 32, 0.0640, f"32 texts a GPU, {_H100}"),
    Network(
        "7 billion parameters",
        7e9,
        16_384,
        6 * 7e9 * 16_384 / 400e12,
        "16,384 tokens a GPU; 6 operations a parameter and token at 400 TFLOP/s, assumed",
    ),
)
_EXCHANGE = "[measured](measurements/exchange-2026-11-23.md), CPUs with gloo, 2 machines"
CONSTANTS = (
    (f"{scaling.WIRE:.0%}", "of a link's rate is used", _EXCHANGE),
    (
        f"{scaling.HIDDEN:.0%}",
        "of the computation hides the exchange",
        f"{_EXCHANGE}; for GPUs and divided weights assumed",
    ),
    (f"{scaling.SUMMED / 1e9:g} GB/s", "is summed by one CPU", _EXCHANGE),
    (f"{scaling.LATENCY * 1e6:.0f} us", "for a message through TCP, from one process to the next", "assumed"),
    (f"{scaling.FABRIC * 1e6:.0f} us", "for a message from GPU to GPU of two nodes", "assumed"),
    (
        f"{scaling.NVLINK / 1e9:.0f} GB/s",
        "between the GPUs of a node",
        "assumed, of 450 each way in NVIDIA's data sheet",
    ),
    (f"{scaling.BLOCKS}", "parts in which divided weights are gathered", "assumed"),
    (f"{scaling.STATE}", "bytes of a parameter with AdamW in fp32", "weight, gradient, two moments"),
)


def tables() -> str:
    """All of them, in Markdown."""
    return "\n".join([*_constants(), "", *(line for network in NETWORKS for line in (*_table(network), ""))])


def _constants() -> Iterator[str]:
    yield from ("| constant | what | where from |", "|---|---|---|")
    yield from (f"| {' | '.join(row)} |" for row in CONSTANTS)


def _table(network: Network) -> Iterator[str]:
    way = "divided weights (`sharding`)" if network.is_divided else "gradients summed in buckets"
    yield f"**{network.name}**: {network.source}; {4 * network.parameters / 1e6:,.0f} MB of gradients in fp32, {way}."
    yield ""
    links = (f"{link / 1e9:.0f} Gbit/s a node" for link in LINKS)
    yield f"| GPUs | weights, gradients and moments in each | {' | '.join(links)} |"
    yield "|---" * (2 + len(LINKS)) + "|"
    for gpus in GPUS:
        made = network.on(gpus)
        state = f"{made.held / 1e9:,.3g} GB"
        cells = ["does not fit" if gpus == 1 and network.is_divided else _cell(made, link) for link in LINKS]
        yield f"| {gpus} | {state} | {' | '.join(cells)} |"


def _cell(made: Scaling, link: float) -> str:
    return f"{scaling.duration(made.step(link))}, {made.efficiency(link):.0%}"


def renewed(page: str) -> str:
    """The page with the tables as they are by now."""
    made, count = _BLOCK.subn(lambda _: tables(), page)
    assert count == 1, "the page has one block of tables"
    return made


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
