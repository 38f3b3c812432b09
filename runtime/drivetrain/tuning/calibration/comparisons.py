"""The comparisons of a calibration: which values are timed against each other, and the small networks that they train.

On a CPU all but the comparison of threads run on one thread and count its CPU time, which other processes hardly change.
"""

from __future__ import annotations

import copy
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain.data.text import length_buckets
from drivetrain.hardware.calibration import Probe
from drivetrain.hardware.facts import Hardware
from drivetrain.job.text import PART_TOKENS
from drivetrain.models import packed_attention
from drivetrain.models.fast_dropout import DropoutFromBits
from drivetrain.models.packed_attention import PackedRow
from drivetrain.optimizations import cpu_threads, precision, unpadding
from drivetrain.system import torch_settings
from drivetrain.tuning.paired_timing import Timings, make_timer, time_variants

TEXTS_PER_BATCH = 24
"""Texts in the batch of the probe of packing."""


@dataclass(frozen=True)
class ProbeNetwork:
    """A network and a batch of random inputs for it."""

    work: str
    module: nn.Module
    inputs: Tensor

    @property
    def size(self) -> int:
        """Weights per layer that has a matrix or kernel."""
        return count_weights_per_layer(self.module)

    def step(self, dtype: torch.dtype | None = None, *, channels_last: bool = False) -> None:
        """One forward and backward pass; the weights stay as they are.

        Args:
            dtype: of autocast; None for fp32.
            channels_last: whether images are in that layout; the weights must be too.
        """
        device = self.inputs.device.type
        x = self.inputs.contiguous(memory_format=torch.channels_last) if channels_last else self.inputs
        with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
            out = self.module(x)
        out.float().square().mean().backward()
        self.module.zero_grad(set_to_none=True)


def count_weights_per_layer(module: nn.Module) -> int:
    """The mean number of weights of the matrices and kernels of a network."""
    counts = [p.numel() for p in module.parameters() if p.ndim > 1]
    return sum(counts) // max(1, len(counts))


def list_networks(device: torch.device) -> dict[str, Callable[[], ProbeNetwork]]:
    """How to build each network, by name; `narrow` and `wide` are of the same kind of work."""

    def builder(work: str, build: Callable[[], nn.Module], *shape: int) -> Callable[[], ProbeNetwork]:
        # Larger batches for GPUs, whose kernels a small batch does not fill.
        factor = 1 if device.type == "cpu" else 8
        return lambda: ProbeNetwork(work, build().to(device), torch.randn(shape[0] * factor, *shape[1:], device=device))

    return {
        "convolution narrow": builder("convolution", lambda: _convolutions(32, 64, 64), 8, 3, 32, 32),
        "convolution wide": builder("convolution", lambda: _convolutions(64, 256, 256), 6, 3, 16, 16),
        "attention narrow": builder("attention", lambda: _encoder(128), 8, 32, 128),
        "attention wide": builder("attention", lambda: _encoder(320), 5, 32, 320),
        "linear narrow": builder("linear", lambda: _linear_layers(64, 256, 256), 512, 64),
        "linear wide": builder("linear", lambda: _linear_layers(768, 768, 768), 128, 768),
        "recurrent narrow": builder("recurrent", lambda: _Recurrent(64, 128), 64, 16, 64),
        "recurrent wide": builder("recurrent", lambda: _Recurrent(256, 320), 24, 8, 256),
    }


def _convolutions(*channels: int) -> nn.Module:
    blocks, before = list[nn.Module](), 3
    for count in channels:
        blocks += [
            nn.Conv2d(before, count, 3, padding=1, bias=False), nn.BatchNorm2d(count), nn.ReLU(), nn.MaxPool2d(2),
        ]  # fmt: skip
        before = count
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def _encoder(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True)


def _linear_layers(*widths: int) -> nn.Module:
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


class _Recurrent(nn.Module):
    """The last output of an LSTM."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]  # type: ignore[no-any-return]


class TextLayer(nn.Module):
    """An encoder layer whose attention is the one of packed texts, or the padded one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.inner = heads, nn.Linear(width, 3 * width)
        self.outer, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down, self.last = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None = None, row: PackedRow | None = None) -> Tensor:
        """Hidden states (texts, tokens, width) with their mask, or (1, tokens, width) of a packed row."""
        count, tokens, width = x.shape
        parts = self.inner(x).view(count, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        if row is not None:
            attended = packed_attention.attend(self, query, key, value, None, packed_row=row)[0]
        else:
            real = None if mask is None else mask[:, None, None].bool()
            attended = functional.scaled_dot_product_attention(query, key, value, real).transpose(1, 2)
        x = self.norm(x + self.outer(attended.reshape(count, tokens, width)))
        return self.last(x + self.down(functional.gelu(self.up(x))))  # type: ignore[no-any-return]


def random_text_mask(longest: int = 64) -> Tensor:
    """The mask (texts, tokens) of a batch whose lengths scatter as those of real texts: log-normal, median 14."""
    lengths = torch.exp(torch.randn(TEXTS_PER_BATCH, generator=torch.Generator().manual_seed(0)) * 0.6 + 2.65)
    lengths = lengths.long().clamp(3, longest)
    return (torch.arange(int(lengths.max())) < lengths[:, None]).long()


DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
DROPOUT_ELEMENTS = 1 << 18
"""Elements of the tensor of the probe of dropout."""
WIDTH, HEADS = 192, 3
"""Of the layer of the probe of packing."""
Comparison = Callable[[float], list[Probe]]
"""Takes a deadline on the monotonic clock, and returns what it found by then."""


def list_comparisons(hardware: Hardware, device: torch.device) -> Iterator[tuple[str, Comparison]]:
    """All comparisons by name, the most useful first: what is left when the time is up is not made."""
    builders = list_networks(device)
    formats = [str(value) for value in precision.formats(hardware)]
    for width in ("narrow", "wide"):
        for name, build in builders.items():
            if name.endswith(width):
                yield name, functools.partial(_compare_formats, build, formats)
        if width == "narrow" and device.type == "cpu":
            yield "dropout", _compare_dropout
            yield "attention packed", functools.partial(_compare_packing, formats)


def list_thread_comparisons(hardware: Hardware) -> Iterator[tuple[str, Comparison]]:
    """Numbers of threads, on the networks of every kind; they say something on a quiet machine only."""
    counts = list_thread_counts(hardware)
    if len(counts) > 1:
        for name, build in list_networks(torch.device("cpu")).items():
            yield f"threads {name}", functools.partial(_compare_threads, build, counts)


def list_thread_counts(hardware: Hardware) -> list[int]:
    """Numbers of threads, the default first; then all logical CPUs, half of the default, and one."""
    best = cpu_threads.threads_of(hardware)
    return list(dict.fromkeys([best, hardware.cpu.budget, max(1, best // 2), 1]))


def _compare_formats(build: Callable[[], ProbeNetwork], formats: list[str], until: float) -> list[Probe]:
    """Number formats and layouts on one network."""
    plain = build()
    has_layout = plain.work == "convolution"
    variants = {name: _make_format_timer(plain, name) for name in formats}
    if has_layout:
        module = copy.deepcopy(plain.module)
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        laid_out = ProbeNetwork(plain.work, module, plain.inputs)
        variants |= {
            f"{name} channels_last": _make_format_timer(laid_out, name, channels_last=True) for name in formats
        }
    timings = time_variants(variants, until)
    work, size, formats_beside_fp32 = plain.work, plain.size, formats[1:]
    pairs = [(name, name, "fp32", "") for name in formats_beside_fp32]
    if has_layout:
        # Formats are compared in both layouts, since each makes the other's gain larger or smaller.
        beside = ("fp32 channels_last", "channels_last=true")
        pairs += [(name, f"{name} channels_last", *beside) for name in formats_beside_fp32]
    probes = _make_probes(timings, "precision", work, size, "fp32", pairs)
    if has_layout:
        pairs = [("true", f"{name} channels_last", name, _name_condition(name)) for name in formats]
        probes += _make_probes(timings, "channels_last", work, size, "false", pairs)
    return probes


def _name_condition(name: str) -> str:
    """What both variants have beside, for a number format."""
    return "" if name == "fp32" else f"precision={name}"


def _compare_threads(build: Callable[[], ProbeNetwork], counts: list[int], until: float) -> list[Probe]:
    """Numbers of threads on one network, each against the first one."""
    network = build()
    timings = time_variants({str(count): _make_thread_timer(network, count) for count in counts}, until)
    return make_simple_probes(
        timings, "cpu_threads", network.work, network.size, [str(count) for count in counts[1:]], str(counts[0])
    )


def _make_probes(
    timings: Timings, setting: str, work: str, size: int, against: str, pairs: Iterable[tuple[str, str, str, str]]
) -> list[Probe]:
    """A probe for each pair that was timed: value, variant with it, variant without it, and what both have beside."""
    ratios = [(value, condition, timings.ratio(name, base)) for value, name, base, condition in pairs]
    return [
        Probe(setting=setting, value=value, against=against, work=work, size=size, beside=condition, **ratio)
        for value, condition, ratio in ratios
        if ratio
    ]


def make_simple_probes(
    timings: Timings, setting: str, work: str, size: int, values: list[str], against: str, condition: str = ""
) -> list[Probe]:
    """A probe for each value that was timed, if the variants are named like their values."""
    return _make_probes(timings, setting, work, size, against, [(one, one, against, condition) for one in values])


def _make_format_timer(network: ProbeNetwork, name: str, *, channels_last: bool = False) -> Callable[[int], float]:
    on_gpu = network.inputs.device.type == "cuda"

    def step() -> None:
        network.step(DTYPES[name], channels_last=channels_last)

    def run(count: int) -> float:
        if not on_gpu:
            return make_timer(step)(count)
        with torch_settings.keep_switches():
            torch_settings.set_tf32(name in ("tf32", "bf16"))
            torch.cuda.synchronize()
            start = time.perf_counter()
            make_timer(step)(count)
            torch.cuda.synchronize()
            return time.perf_counter() - start

    return run


def _make_thread_timer(network: ProbeNetwork, count: int) -> Callable[[int], float]:
    run = make_timer(network.step, time.perf_counter)

    def with_threads(number: int) -> float:
        torch.set_num_threads(count)
        try:
            return run(number)
        finally:
            torch.set_num_threads(1)

    return with_threads


def _compare_dropout(until: float) -> list[Probe]:
    """Dropout from bits against torch's, with the backward pass."""
    x = torch.randn(DROPOUT_ELEMENTS, requires_grad=True)

    def pass_of(layer: nn.Module) -> Callable[[int], float]:
        return make_timer(lambda: layer(x).sum().backward())

    timings = time_variants({"false": pass_of(nn.Dropout(0.1)), "true": pass_of(DropoutFromBits(0.1))}, until)
    return make_simple_probes(timings, "packed_dropout", "dropout", DROPOUT_ELEMENTS, ["true"], "false")


def _compare_packing(formats: list[str], until: float) -> list[Probe]:
    """One encoder layer over a batch of short texts: packed in a row, in micro-batches of like length, and padded."""
    layer, mask = TextLayer(WIDTH, HEADS), random_text_mask()
    x = torch.randn(*mask.shape, WIDTH) * mask[..., None]
    layouts: Mapping[str, Callable[[], None]] = {
        unpadding.OFF: lambda: _run_backward(layer(x, mask)),
        unpadding.PACKED: lambda: _run_packed(layer, x, mask),
        str(PART_TOKENS): lambda: _run_in_parts(layer, x, mask),
    }
    size, probes, start_time = count_weights_per_layer(layer), list[Probe](), time.monotonic()
    for number, name in enumerate(formats):
        deadline = start_time + (until - start_time) * (number + 1) / len(formats)
        timings = time_variants({layout: _time_in_format(step, name) for layout, step in layouts.items()}, deadline)
        probes += make_simple_probes(
            timings, "unpadding", "texts", size, list(layouts)[1:], unpadding.OFF, _name_condition(name)
        )
    return probes


def _time_in_format(step: Callable[[], None], name: str) -> Callable[[int], float]:
    def one() -> None:
        with torch.autocast("cpu", DTYPES[name] or torch.bfloat16, enabled=DTYPES[name] is not None):
            step()

    return make_timer(one)


def _run_backward(out: Tensor) -> None:
    out.float().square().mean().backward()  # type: ignore[no-untyped-call]


def _run_packed(layer: TextLayer, x: Tensor, mask: Tensor) -> None:
    row = packed_attention.lay_out(mask)
    flat = x.flatten(0, 1)[row.token_positions]
    flat = nn.functional.pad(flat, (0, 0, 0, row.size - len(row.token_positions)))
    _run_backward(layer(flat[None], row=row))


def _run_in_parts(layer: TextLayer, x: Tensor, mask: Tensor) -> None:
    lengths = mask.sum(dim=1).numpy()
    for rows in length_buckets.pieces(lengths, len(lengths), PART_TOKENS):
        index, longest = torch.from_numpy(rows), int(lengths[rows].max())
        _run_backward(layer(x[index, :longest], mask[index, :longest]))
