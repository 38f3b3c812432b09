"""The comparisons of a calibration: which values are timed against each other, on which network.

On a CPU all but the comparison of threads run on one thread and count its CPU time, which other processes hardly change.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from runtime.data.text import length_buckets
from runtime.hardware.calibration import Probe
from runtime.hardware.facts import Hardware
from runtime.job.text import PART_TOKENS
from runtime.models import packed_attention
from runtime.models.fast_dropout import DropoutFromBits
from runtime.optimizations import cpu_threads, precision, unpadding
from runtime.system import torch_settings
from runtime.tuning.calibration import networks
from runtime.tuning.calibration.networks import ProbeNetwork, TextLayer
from runtime.tuning.calibration.timing import Timings, steps, timed

DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
DROPPED = 1 << 18
"""Elements of the tensor of the probe of dropout."""
WIDTH, HEADS = 192, 3
"""Of the layer of the probe of packing."""
Comparison = Callable[[float], list[Probe]]
"""Takes a deadline on the monotonic clock, and returns what it found by then."""


def comparisons(hardware: Hardware, device: torch.device) -> Iterator[tuple[str, Comparison]]:
    """All comparisons by name, the most useful first: what is left when the time is up is not made."""
    made = networks.networks(device)
    formats = [str(value) for value in precision.formats(hardware)]
    for width in ("narrow", "wide"):
        for name, build in made.items():
            if name.endswith(width):
                yield name, functools.partial(_network, build, formats)
        if width == "narrow" and device.type == "cpu":
            yield "dropout", _dropout
            yield "attention packed", functools.partial(_texts, formats)


def thread_comparisons(hardware: Hardware) -> Iterator[tuple[str, Comparison]]:
    """Numbers of threads, on the networks of every kind; they say something on a quiet machine only."""
    counts = thread_counts(hardware)
    if len(counts) > 1:
        for name, build in networks.networks(torch.device("cpu")).items():
            yield f"threads {name}", functools.partial(_threads, build, counts)


def thread_counts(hardware: Hardware) -> list[int]:
    """Numbers of threads, the default first; then all logical CPUs, half of the default, and one."""
    best = cpu_threads.threads_of(hardware)
    return list(dict.fromkeys([best, hardware.cpu.budget, max(1, best // 2), 1]))


def _network(build: Callable[[], ProbeNetwork], formats: list[str], until: float) -> list[Probe]:
    """Number formats and layouts on one network."""
    plain = build()
    laid = plain.work == "convolution"
    variants = {name: _formatted(plain, name) for name in formats}
    if laid:
        module = copy.deepcopy(plain.module)
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        other = ProbeNetwork(plain.work, module, plain.inputs)
        variants |= {f"{name} channels_last": _formatted(other, name, channels_last=True) for name in formats}
    found = timed(variants, until)
    rows = _rows(found, plain, "precision", [(name, name, "fp32", "") for name in formats[1:]])
    if laid:
        rows += _rows(found, plain, "precision", [
            (name, f"{name} channels_last", "fp32 channels_last", "channels_last=true") for name in formats[1:]
        ])  # fmt: skip
        rows += _rows(found, plain, "channels_last", [
            ("true", f"{name} channels_last", name, "" if name == "fp32" else f"precision={name}") for name in formats
        ], "false")  # fmt: skip
    return rows


def _threads(build: Callable[[], ProbeNetwork], counts: list[int], until: float) -> list[Probe]:
    """Numbers of threads on one network, each against the first one."""
    network = build()
    found = timed({str(count): _threaded(network, count) for count in counts}, until)
    return _simple(
        found, "cpu_threads", network.work, network.size, [str(count) for count in counts[1:]], str(counts[0])
    )


def _rows(
    found: Timings, network: ProbeNetwork, setting: str, pairs: list[tuple[str, str, str, str]], against: str = "fp32"
) -> list[Probe]:
    """A probe for each pair: value, variant with it, variant without it, and what both have beside."""
    rows = []
    for value, name, base, beside in pairs:
        if ratio := found.ratio(name, base):
            rows.append(
                Probe(
                    setting=setting, value=value, against=against, work=network.work, size=network.size,
                    beside=beside, ratio=ratio.ratio, low=ratio.low, high=ratio.high, pairs=ratio.pairs,
                )
            )  # fmt: skip
    return rows


def _formatted(network: ProbeNetwork, name: str, *, channels_last: bool = False) -> Callable[[int], float]:
    on_gpu = network.inputs.device.type == "cuda"

    def step() -> None:
        network.step(DTYPES[name], channels_last=channels_last)

    def run(count: int) -> float:
        if not on_gpu:
            return steps(step)(count)
        with torch_settings.kept():
            torch_settings.set_tf32(name in ("tf32", "bf16"))
            torch.cuda.synchronize()
            start = time.perf_counter()
            steps(step)(count)
            torch.cuda.synchronize()
            return time.perf_counter() - start

    return run


def _threaded(network: ProbeNetwork, count: int) -> Callable[[int], float]:
    run = steps(network.step, time.perf_counter)

    def with_threads(number: int) -> float:
        torch.set_num_threads(count)
        try:
            return run(number)
        finally:
            torch.set_num_threads(1)

    return with_threads


def _dropout(until: float) -> list[Probe]:
    """Dropout from bits against torch's, with the backward pass."""
    x = torch.randn(DROPPED, requires_grad=True)

    def pass_of(layer: nn.Module) -> Callable[[int], float]:
        return steps(lambda: layer(x).sum().backward())

    found = timed({"false": pass_of(nn.Dropout(0.1)), "true": pass_of(DropoutFromBits(0.1))}, until)
    return _simple(found, "packed_dropout", "dropout", DROPPED, ["true"], "false")


def _texts(formats: list[str], until: float) -> list[Probe]:
    """One encoder layer over a batch of short texts: packed in a row, in micro-batches of like length, and padded."""
    layer, mask = TextLayer(WIDTH, HEADS), networks.texts()
    x = torch.randn(*mask.shape, WIDTH) * mask[..., None]
    ways: Mapping[str, Callable[[], None]] = {
        unpadding.OFF: lambda: _backward(layer(x, mask)),
        unpadding.PACKED: lambda: _packed(layer, x, mask),
        str(PART_TOKENS): lambda: _in_parts(layer, x, mask),
    }
    rows, started = [], time.monotonic()
    for number, name in enumerate(formats):
        share = started + (until - started) * (number + 1) / len(formats)
        found = timed({way: _cast(step, name) for way, step in ways.items()}, share)
        beside = "" if name == "fp32" else f"precision={name}"
        rows += _simple(found, "unpadding", "texts", networks.weights_per_layer(layer), list(ways)[1:], "off", beside)
    return rows


def _cast(step: Callable[[], None], name: str) -> Callable[[int], float]:
    def one() -> None:
        with torch.autocast("cpu", DTYPES[name] or torch.bfloat16, enabled=DTYPES[name] is not None):
            step()

    return steps(one)


def _backward(out: Tensor) -> None:
    out.float().square().mean().backward()  # type: ignore[no-untyped-call]


def _packed(layer: TextLayer, x: Tensor, mask: Tensor) -> None:
    row = packed_attention.row(mask)
    flat = x.flatten(0, 1)[row.index]
    flat = nn.functional.pad(flat, (0, 0, 0, row.size - len(row.index)))
    _backward(layer(flat[None], row=row))


def _in_parts(layer: TextLayer, x: Tensor, mask: Tensor) -> None:
    lengths = mask.sum(dim=1).numpy()
    for rows in length_buckets.pieces(lengths, len(lengths), PART_TOKENS):
        index, longest = torch.from_numpy(rows), int(lengths[rows].max())
        _backward(layer(x[index, :longest], mask[index, :longest]))


def _simple(
    found: Timings, setting: str, work: str, size: int, values: list[str], against: str, beside: str = ""
) -> list[Probe]:
    ratios = {value: found.ratio(value, against) for value in values}
    return [
        Probe(
            setting=setting, value=value, against=against, work=work, size=size, beside=beside,
            ratio=ratio.ratio, low=ratio.low, high=ratio.high, pairs=ratio.pairs,
        )
        for value, ratio in ratios.items() if ratio
    ]  # fmt: skip
