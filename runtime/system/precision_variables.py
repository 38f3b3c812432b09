"""Environment variables by which libraries compute in another number format than the plan says."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def is_on(value: str) -> bool:
    """Whether a variable that is a switch turns something on."""
    return value.lower() not in ("", "0", "false", "off", "no")


VARIABLES: dict[str, tuple[Callable[[str], bool], str]] = {
    "NVIDIA_TF32_OVERRIDE": (lambda value: value != "", "overrides the precision of the plan"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": (is_on, "overrides the precision of the plan"),
    "ONEDNN_DEFAULT_FPMATH_MODE": (
        lambda value: value.upper() not in ("", "STRICT"),
        "lowers the precision below that of the plan",
    ),
}
"""By name: whether a value matters, and what it does."""


def overriding(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable that is set so that the plan's precision does not hold."""
    return [
        f"{name}={environ[name]} {what}; unset it if you did not mean that"
        for name, (matters, what) in VARIABLES.items()
        if name in environ and matters(environ[name])
    ]
