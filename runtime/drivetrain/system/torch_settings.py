"""All process-wide switches of torch that change numbers or select kernels, set and read in one place.

A switch stays set after the run that set it. So a run begins with `reset`, optimizations change what the plan requires,
and a host program gets its own values back with `keep_switches`.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.backends import cuda, cudnn, mkldnn

HAS_SETTER = hasattr(torch._C, "_set_fp32_precision_setter")
"""Whether this torch (2.9 or later) has a precision for each kind of kernel, beside the older switches."""
_LEVELS = tuple((backend, "all") for backend in ("generic", "cuda", "mkldnn"))
_KERNELS = tuple((backend, kind) for backend in ("cuda", "mkldnn") for kind in ("matmul", "conv", "rnn"))

_NOT_DETERMINISTIC = re.compile(r"(\w+) does not have a deterministic implementation|because it uses CuBLAS")

_REPLACED_FUNCTIONS: list[tuple[Any, str]] = []
"""Configurations of transformers with another attention function, and the name of the one before."""


@dataclass(frozen=True)
class Switch:
    """A process-wide setting, and its value at the start of a run."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    plain: Any
    """None where a run leaves it as it is."""


def reset_switches() -> None:
    """Set all switches for the start of a run: true fp32, no cuDNN benchmarking, all attention kernels allowed."""
    for switch in _SWITCHES:
        if switch.plain is not None:
            switch.write(switch.plain)
    set_tf32(False)


def set_tf32(on: bool) -> None:
    """Allow or forbid TF32 in matrix products, convolutions and recurrent layers on GPUs.

    torch refuses to read a mix of its older and newer switches, and its compiler reads both, so both are set.
    """
    if HAS_SETTER:
        for level in _LEVELS:
            _set_precision(level, "none")
    torch.set_float32_matmul_precision("high" if on else "highest")
    cudnn.allow_tf32 = on
    if HAS_SETTER:
        for backend, kind in _KERNELS:
            _set_precision((backend, kind), "tf32" if on and backend == "cuda" else "ieee")


def read_tf32() -> bool | None:
    """Return whether fp32 kernels may use TF32; None if only some may, or if kernels of a CPU may use a shorter format."""
    used = {_uses_tf32(kind) for kind in ("matmul", "conv", "rnn")}
    short = HAS_SETTER and any(
        _read_precision(("mkldnn", kind)) not in ("none", "ieee") for kind in ("matmul", "conv", "rnn")
    )
    return None if len(used) > 1 or short else used.pop()


def allow_attention_kernels(flash: bool, efficient: bool, cudnn: bool) -> None:
    """Set the attention kernels that torch may use beside plain math."""
    cuda.enable_flash_sdp(flash)
    cuda.enable_mem_efficient_sdp(efficient)
    cuda.enable_cudnn_sdp(cudnn)
    cuda.enable_math_sdp(True)


def list_attention_kernels() -> tuple[bool, bool, bool]:
    """List the attention kernels that torch may use: flash, memory-efficient, cuDNN."""
    readers: list[Callable[[], bool]]
    readers = [cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.cudnn_sdp_enabled]
    flash, efficient, cudnn = (is_enabled() for is_enabled in readers)
    return flash, efficient, cudnn


def use_attention_function(config: Any, name: str) -> None:
    """Have an encoder of transformers attend by this function of the library's registry; `keep_switches` takes it back."""
    if config._attn_implementation != name:
        _REPLACED_FUNCTIONS.append((config, config._attn_implementation))
        config._attn_implementation = name


def flushes_denormals() -> bool:
    """Return whether a denormal number times one is zero."""
    return bool((torch.full((1,), 1e-40, dtype=torch.float32) * 1.0).item() == 0.0)


@contextlib.contextmanager
def require_deterministic_kernels() -> Iterator[None]:
    """Raise an error for an operation without a deterministic kernel within the block.

    Where torch only warns, its flash attention sums in any order in the backward pass.
    """
    was_strict = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(was_strict)


def find_nondeterministic_operation(error: BaseException) -> str | None:
    """Find the operation that an error refuses for its kernels; None if it has another cause."""
    match = _NOT_DETERMINISTIC.search(str(error)) if isinstance(error, RuntimeError) else None
    return (match[1] or "cuBLAS") if match else None


def configure_compiler(device: torch.device, *, deterministic: bool) -> None:
    """Configure torch's compiler before anything is compiled; imports the compiler."""
    # Also tells the compiler, which then does not select kernels by timing.
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    if device.type == "cpu":
        from torch._inductor import config

        # On a CPU the compiler's own generator is scalar code; with torch's, dropout samples as torch's layers do.
        config.fallback_random = True


def read_switches() -> dict[str, Any]:
    """Read the values of all switches."""
    values = {switch.name: switch.read() for switch in _SWITCHES}
    if HAS_SETTER:
        values |= {f"{backend} {kind}": _read_precision((backend, kind)) for backend, kind in (*_LEVELS, *_KERNELS)}
    with contextlib.suppress(RuntimeError):  # newer switches were set elsewhere, which the older ones cannot represent
        values["float32_matmul_precision"] = torch.get_float32_matmul_precision()
        values["cudnn allow_tf32"] = cudnn.allow_tf32
    return values


@contextlib.contextmanager
def keep_switches() -> Iterator[None]:
    """Restore all switches afterwards."""
    values, replaced = read_switches(), len(_REPLACED_FUNCTIONS)
    try:
        yield
    finally:
        _restore_switches(values)
        while len(_REPLACED_FUNCTIONS) > replaced:
            config, name = _REPLACED_FUNCTIONS.pop()
            config._attn_implementation = name


@contextlib.contextmanager
def use_default_switches() -> Iterator[None]:
    """Set all switches within the block as at the start of a run; restore them afterwards."""
    with keep_switches():
        reset_switches()
        yield


def _restore_switches(values: dict[str, Any]) -> None:
    for switch in _SWITCHES:
        switch.write(values[switch.name])
    # Setting an older switch also sets newer ones, and a general switch the specific ones.
    if "float32_matmul_precision" in values:
        torch.set_float32_matmul_precision(values["float32_matmul_precision"])
    if "cudnn allow_tf32" in values:
        cudnn.allow_tf32 = values["cudnn allow_tf32"]
    if HAS_SETTER:
        for level in (*_LEVELS, *_KERNELS):
            _set_precision(level, values[" ".join(level)])


def _set_precision(level: tuple[str, str], value: str) -> None:
    torch._C._set_fp32_precision_setter(*level, value)


def _read_precision(level: tuple[str, str]) -> str:
    return str(torch._C._get_fp32_precision_getter(*level))


def _uses_tf32(kind: str) -> bool:
    if HAS_SETTER:
        return _read_precision(("cuda", kind)) == "tf32"
    return bool(cuda.matmul.allow_tf32 if kind == "matmul" else cudnn.allow_tf32)


def _list_attribute_switch(owner: object, name: str, plain: object, title: str) -> list[Switch]:
    """List the switch for an attribute; none if this torch does not have it."""
    if not hasattr(owner, name):
        return []

    def write(value: Any) -> None:
        setattr(owner, name, value)

    return [Switch(title, lambda: getattr(owner, name), write, plain)]


def _create_reduction_switch(name: str) -> Switch:
    """Create the switch of accumulating sums in a short format; newer versions also have whether they may be split."""
    split = f"{name}_split_k"

    def read() -> tuple[bool, ...]:
        reduces = bool(getattr(cuda.matmul, name))
        return (reduces, bool(getattr(cuda.matmul, split))) if hasattr(cuda.matmul, split) else (reduces,)

    def write(value: tuple[bool, ...]) -> None:
        setattr(cuda.matmul, name, value if len(value) > 1 else value[0])

    return Switch(f"matmul {name}", read, write, (True,))


def _create_compiler_switch(name: str) -> Switch:
    """Create a switch of torch's compiler, which is not imported for it: that takes as long as importing torch.

    A new run leaves it: code of an earlier run may be compiled again for another shape, and must be the same.
    """

    def config() -> Any:
        return sys.modules.get("torch._inductor.config")

    def write(value: bool) -> None:
        if hasattr(config(), name):
            setattr(config(), name, value)

    return Switch(f"compiler {name}", lambda: bool(getattr(config(), name, False)), write, None)


_SWITCHES: tuple[Switch, ...] = (
    _create_compiler_switch("deterministic"),
    _create_compiler_switch("fallback_random"),
    Switch("default_dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    # The same as torch.use_deterministic_algorithms, which also imports the compiler and so takes as long as torch
    # itself.
    Switch("deterministic", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0),
    # Filling uninitialized memory is a debugging aid; nothing here reads memory that it has not written.
    *_list_attribute_switch(torch.utils.deterministic, "fill_uninitialized_memory", False, "fill_uninitialized_memory"),
    Switch("flush_denormal", flushes_denormals, torch.set_flush_denormal, False),
    Switch("attention", list_attention_kernels, lambda kernels: allow_attention_kernels(*kernels), (True, True, True)),
    Switch("attention math", cuda.math_sdp_enabled, cuda.enable_math_sdp, True),
    Switch(
        "attention short sums",
        cuda.fp16_bf16_reduction_math_sdp_allowed,
        cuda.allow_fp16_bf16_reduction_math_sdp,
        False,
    ),
    *_list_attribute_switch(cudnn, "benchmark", False, "cudnn benchmark"),
    *_list_attribute_switch(cudnn, "deterministic", False, "cudnn deterministic"),
    *_list_attribute_switch(mkldnn, "deterministic", False, "mkldnn deterministic"),
    _create_reduction_switch("allow_fp16_reduced_precision_reduction"),
    _create_reduction_switch("allow_bf16_reduced_precision_reduction"),
    *_list_attribute_switch(cuda.matmul, "allow_fp16_accumulation", False, "matmul allow_fp16_accumulation"),
)


def casts_keep_gradients() -> bool:
    """Return whether a weight cast by autocast under `no_grad` gets its gradient when the cached cast is reused.

    Not in older versions (pytorch issue 158232), where a block recomputed in the backward pass would not be trained.
    """
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 13)
