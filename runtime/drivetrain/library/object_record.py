"""Records the objects of a training from Python: structure, attributes and code.

A resumed run with another network, loss or data set would be neither the old training nor a new training.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import linecache
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from drivetrain.errors import CheckpointError, UserCodeError
from drivetrain.job.extension import describe_unfinished
from drivetrain.system.run_files import OBJECTS_FILE, STATE_FILE, RunFiles
from drivetrain.training.user_parts import UserParts, read_group_settings

CALLBACKS = ("on_step", "on_epoch", "on_end")
MAX_LISTED_DIFFERENCES = 5
"""Largest number of listed differences."""
MAX_HASHED_BYTES = 16 << 20
"""Largest array whose values are compared; of a larger array only shape and type are."""
MAX_TEXT = 60
"""Longest description that is not shortened to a digest."""
MAX_DEPTH, MAX_MEMBERS = 6, 1000
"""How deep objects inside of objects are read, and how many members of each."""
LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
LIBRARIES.append(Path(__file__).parents[1])
PLAIN: tuple[type, ...] = (bool, int, float, complex, str, bytes, type(None), range, PurePath, np.generic)
PLAIN += (torch.dtype, torch.device, types.ModuleType)
_OF_MODULES = set(vars(nn.Module())) | {"_is_full_backward_hook"}


def collect_rows(model: nn.Module, loss: object, data: Mapping[str, object], user_parts: UserParts) -> dict[str, str]:
    """Collect the compared values of all objects of a call by the name of an object or attribute; `data` is by argument."""
    objects = {"loss": loss, **data}
    objects |= {f"metrics.{name}": metric for name, metric in user_parts.metrics.metrics.items()}
    objects |= {name: getattr(user_parts.callbacks, name) for name in CALLBACKS}
    record: dict[str, str] = {}
    if user_parts.optimizer:
        for number, group in enumerate(read_group_settings(user_parts.optimizer.optimizer)):
            # Building a scheduler has changed the rate.
            settings = {**group, "lr": group.get("initial_lr", group["lr"])}
            record |= {f"optimizer.{number}.{key}": _describe_value(value) for key, value in settings.items()}
        if user_parts.schedule:
            objects["schedule"] = user_parts.schedule.build_trial(user_parts.optimizer.optimizer)
    record |= dict(_collect_module_rows("model", model, loads=True))
    for name, value in objects.items():
        record |= dict(_collect_rows(name, value))
    return record


def check(folder: Path, rows: Mapping[str, str], *, extends: bool = False) -> list[str]:
    """Record the objects of a run, or compare them with the record; returns lines about changed callbacks.

    Args:
        folder: run folder.
        rows: rows of the current call.
        extends: whether the run has just begun to continue a finished run, perhaps with other rates.

    Raises:
        CheckpointError: if the network, the loss, a metric or the data has changed.
    """
    files = RunFiles(folder)
    record = files.read_object(OBJECTS_FILE)
    stored_rows = record.get("rows")
    if not isinstance(stored_rows, dict):
        files.write_json(OBJECTS_FILE, {"rows": dict(rows), "changing": []})
        return []
    changed = _list_changed(stored_rows, rows, record.get("changing", ()))
    free = list(CALLBACKS)  # they change no weights
    if files.read_object(STATE_FILE).get("exit_code") == UserCodeError.exit_code:
        free.append("metrics")  # a metric that raised an error must be fixed before the run can continue
    if extends:
        free += ["optimizer", "schedule"]
    wrong = [name for name in changed if name.split(".")[0] not in free]
    if wrong:
        lines = [
            f"{name} was {stored_rows.get(name, 'absent')} and is {rows.get(name, 'absent')}"
            for name in wrong[:MAX_LISTED_DIFFERENCES]
        ]
        omitted = f"; and {len(wrong) - MAX_LISTED_DIFFERENCES} more" if len(wrong) > MAX_LISTED_DIFFERENCES else ""
        raise CheckpointError(
            f"{describe_unfinished(folder)} and was started with other objects: {'; '.join(lines)}{omitted}",
            "the network, loss, metrics and data that the run was started with, with the same code",
            "undo the change, or start a new run with new=True",
        )
    if extends:
        files.write_json(OBJECTS_FILE, {"rows": dict(rows), "changing": record.get("changing", [])})
    return [f"{name} has changed since the run started" for name in dict.fromkeys(n.split(".")[0] for n in changed)]


def _list_changed(stored: Mapping[str, str], rows: Mapping[str, str], excluded: Iterable[str]) -> list[str]:
    """List the names of rows that differ, without the excluded names."""
    names = sorted((stored.keys() | rows.keys()) - set(excluded))
    return [name for name in names if stored.get(name) != rows.get(name)]


def note_changes(folder: Path, rows: Mapping[str, str]) -> None:
    """Exclude values that the training itself changes, such as a counter or a cache, from later comparisons."""
    files = RunFiles(folder)
    record = files.read_object(OBJECTS_FILE)
    stored_rows, changing = record.get("rows"), record.get("changing")
    if isinstance(stored_rows, dict) and isinstance(changing, list):
        # The next call has a new optimizer and scheduler.
        names = _list_changed(stored_rows, rows, ())
        changed = [name for name in names if name.split(".")[0] not in ("optimizer", "schedule")]
        if not set(changed) <= set(changing):
            files.write_json(OBJECTS_FILE, {"rows": stored_rows, "changing": sorted({*changed, *changing})})


def _collect_rows(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the class and the attributes of an object."""
    if value is None:
        return
    if isinstance(value, nn.Module):
        yield from _collect_module_rows(name, value)
    elif _is_code(value) or not hasattr(value, "__dict__"):
        yield name, _describe_value(value)
    else:
        yield name, _describe_value(type(value))
        for key, attribute in vars(value).items():
            yield f"{name}.{key}", _describe_value(attribute)


def _collect_module_rows(name: str, module: nn.Module, *, loads: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the rows of a module; if `loads` is true, without the values that a checkpoint restores."""
    names: dict[int, str] = {}
    for path, layer in module.named_modules():
        layer_path = f"{name}.{path}".rstrip(".")
        yield layer_path, _describe_value(type(layer))
        for key, parameter in layer._parameters.items():
            if parameter is not None:
                first_name = names.setdefault(id(parameter), f"{layer_path}.{key}")
                shared = "" if first_name == f"{layer_path}.{key}" else f", the same as {first_name}"
                frozen = "" if parameter.requires_grad else ", frozen"
                values = "" if loads else f", {_describe_value(parameter.detach())}"
                yield f"{layer_path}.{key}", f"{tuple(parameter.shape)} {parameter.dtype}{frozen}{shared}{values}"
        restored = layer._buffers.keys() - layer._non_persistent_buffers_set if loads else ()
        buffers = {key: value for key, value in layer._buffers.items() if value is not None and key not in restored}
        for key, value in (buffers | vars(layer)).items():
            if key not in _OF_MODULES:
                yield f"{layer_path}.{key}", _describe_value(value)
        hooks = [*layer._forward_pre_hooks.values(), *layer._forward_hooks.values(), *layer._backward_hooks.values()]
        if hooks:
            yield f"{layer_path} hooks", _describe_value(hooks)


def _describe_value(value: object, depth: int = 0) -> str:
    """Return a short value as text, and the class with a digest of anything longer."""
    text = _spell(value, depth)
    if len(text) <= MAX_TEXT:
        return text
    kind = value.__qualname__ if isinstance(value, type | types.FunctionType) else type(value).__name__
    return f"{kind} {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:12]}"


def _spell(value: Any, depth: int) -> str:
    """Spell out a value: plain values, arrays by their content, and the user's functions and classes by their source."""
    kind = type(value).__qualname__
    members: Sequence[object]
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{type(value).__name__} {_describe_array(value)}"
    if depth > MAX_DEPTH or isinstance(value, Optimizer):
        return kind
    if isinstance(value, Mapping):
        members = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | deque):
        members = list(value)
    elif isinstance(value, set | frozenset):
        members = sorted(map(_describe_value, value))
    elif isinstance(value, nn.Module):
        # Initial weights differ in every start of a program and change in training.
        members = list(_collect_module_rows("", value, loads=True))
    elif isinstance(value, functools.partial):
        members = [value.func, value.args, value.keywords]
    elif isinstance(value, types.MethodType):
        members = [value.__func__, value.__self__]
    elif _is_code(value):
        kind, members = _read_code(value)
    else:
        members = [type(value), getattr(value, "__dict__", {})]
    texts = [_describe_value(member, depth + 1) for member in members[:MAX_MEMBERS]]
    return f"{kind} {len(members)} {texts}" if texts else kind


def _read_code(code: Any) -> tuple[str, Sequence[object]]:
    """Read a class with its functions, or a function with its source and the values that are bound to it."""
    name = f"{code.__module__}.{code.__qualname__}"
    if _is_library(code.__module__):
        return name, []
    if isinstance(code, type):
        members: list[object] = [*code.__bases__]
        for key, member in sorted(vars(code).items()):
            # The function of a property, a static method or a class method.
            member = getattr(member, "fget", getattr(member, "__func__", member))
            if inspect.isfunction(member) or (isinstance(member, PLAIN) and not key.startswith("__")):
                members.append(member)
        return name, members
    if not isinstance(code, types.FunctionType):
        return name, []
    cells = [cell.cell_contents for cell in code.__closure__ or () if cell != types.CellType()]
    return name, [_read_source(code.__code__), code.__defaults__, code.__kwdefaults__, *cells]


def _describe_array(array: Any) -> str:
    """Describe an array or tensor by shape and type, and by a hash of its values unless it is large."""
    text = f"{tuple(array.shape)} {array.dtype}"
    if isinstance(array, torch.Tensor) and array.layout == torch.strided and array.device.type != "meta":
        array = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if not isinstance(array, np.ndarray) or array.dtype == object or array.nbytes > MAX_HASHED_BYTES:
        return text
    return f"{text} {hashlib.sha256(array.tobytes()).hexdigest()}"


def _is_code(value: object) -> bool:
    return isinstance(value, type | functools.partial) or inspect.isroutine(value)


def _is_library(module: str | None) -> bool:
    """Return whether a module belongs to an installed library, which its name and version identify."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None:
        return (module or "").partition(".")[0] in sys.builtin_module_names
    return any(Path(file).is_relative_to(folder) for folder in LIBRARIES)


@functools.cache
def _read_source(code: types.CodeType) -> str:
    """Read the source of a function's body, empty without a file; cached, because the file may be edited."""
    codes = (code, *(constant for constant in code.co_consts if isinstance(constant, types.CodeType)))
    spans = [(a or 0, b or 0, c or 0, d) for nested in codes for a, b, c, d in nested.co_positions() if a and d]
    lines = linecache.getlines(code.co_filename)
    if not lines or not spans:
        return ""
    start_line, start_column = min((line, column) for line, _, column, _ in spans)
    end_line, end_column = max((line, column) for _, line, _, column in spans)
    # Columns count bytes.
    text = "".join(lines[start_line - 1 : end_line]).encode()
    end = len(text) - len(lines[end_line - 1].encode()) + end_column
    return text[start_column:end].decode(errors="replace")
