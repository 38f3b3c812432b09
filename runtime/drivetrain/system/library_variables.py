"""Environment variables of the libraries: a plan's merged with the user's, which win, and those that override the precision of a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Comma-separated settings of the GPU's allocator; newer torch versions read the first variable, if it is set."""
REPRODUCIBLE_WORKSPACES = (":4096:8", ":16:8")
"""Workspace settings that make cuBLAS sum in the same order each time."""


def merge_variables(current: Mapping[str, str], planned: Mapping[str, str]) -> dict[str, str]:
    """Return the planned variables for a process, except those whose current value the user has set; lists are joined."""
    variables = dict(planned)
    if current.get("CUBLAS_WORKSPACE_CONFIG") in REPRODUCIBLE_WORKSPACES:
        variables.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if "LD_PRELOAD" in variables and current.get("LD_PRELOAD"):
        variables["LD_PRELOAD"] = f"{variables['LD_PRELOAD']}:{current['LD_PRELOAD']}"
    ours = variables.pop(ALLOCATOR_VARIABLES[1], None)
    if ours is None:
        return variables
    names = [name for name in ALLOCATOR_VARIABLES if current.get(name)] or [ALLOCATOR_VARIABLES[1]]
    return variables | {name: _join_settings(current.get(name, ""), ours) for name in names}


def read_allocator_settings(environ: Mapping[str, str] = os.environ) -> str:
    """Read the allocator's settings as torch reads them."""
    return next((environ[name] for name in ALLOCATOR_VARIABLES if environ.get(name)), "")


def _join_settings(theirs: str, ours: str) -> str:
    """Join two lists; of ours only settings that theirs does not have."""
    names = {setting.partition(":")[0].strip() for setting in theirs.split(",")}
    additional = [setting for setting in ours.split(",") if setting.partition(":")[0] not in names]
    return ",".join(filter(None, (theirs, *additional)))


def is_on(value: str) -> bool:
    """Return whether a variable that is a switch turns something on."""
    return value.lower() not in ("", "0", "false", "off", "no")


PRECISION_VARIABLES: dict[str, tuple[Callable[[str], bool], str]] = {
    "NVIDIA_TF32_OVERRIDE": (lambda value: value != "", "overrides the precision of the plan"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": (is_on, "overrides the precision of the plan"),
    "ONEDNN_DEFAULT_FPMATH_MODE": (lambda value: value.upper() not in ("", "STRICT"), "lowers the plan's precision"),
}
"""By name: whether a value matters, and its effect."""


def list_overrides(environ: Mapping[str, str]) -> list[str]:
    """List a line for each variable that overrides the plan's precision."""
    return [
        f"{name}={environ[name]} {effect}; unset it if you did not mean that"
        for name, (matters, effect) in PRECISION_VARIABLES.items()
        if name in environ and matters(environ[name])
    ]
