"""Resume: whether a checkpoint fits the run that is to go on from it, and what has changed around it since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime import checkpoint
from runtime.errors import CheckpointError


def check_fit(loaded: checkpoint.Loaded, state: Mapping[str, Any], tensors: Mapping[str, checkpoint.Tensors]) -> None:
    """Look whether a checkpoint holds what a run needs, no less and no more.

    Args:
        loaded: the checkpoint.
        state: the state of the run, as it is before anything is loaded.
        tensors: likewise its tensors, all but the optimizer's.

    Raises:
        CheckpointError: naming what is missing, unknown or of another kind.
    """
    wrong = _unlike(loaded.state, {**state, "last": loaded.state.get("last")}, "")
    wrong += [f"{stem}.safetensors" for stem in {*tensors, "optimizer"} ^ set(loaded.tensors)]
    for stem, group in tensors.items():
        found = {name: (value.shape, value.dtype) for name, value in loaded.tensors.get(stem, {}).items()}
        wanted = {name: (value.shape, value.dtype) for name, value in group.items()}
        wrong += [f"{stem}: {name}" for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)]
    count = len(loaded.tensors.get("optimizer", {}))
    if loaded.state.get("moments") != count:
        wrong.append(f"optimizer.safetensors: {count} tensors instead of {loaded.state.get('moments')}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(f"checkpoint {loaded.path} does not fit this run: {', '.join(sorted(wrong)[:3])}{more} "
                              "missing, unknown or of another kind", "a checkpoint of the same job, written whole",
                              "undo the change of the model or the job, or start a new run with --new")  # fmt: skip


def _unlike(found: Any, wanted: Any, place: str) -> list[str]:
    """Where two trees of plain data differ in keys or kinds; None stands for any kind."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        places = {key: f"{place}.{key}".lstrip(".") for key in found.keys() | wanted.keys()}
        wrong = [places[key] for key in found.keys() ^ wanted.keys()]
        return wrong + [
            w for key in found.keys() & wanted.keys() for w in _unlike(found[key], wanted[key], places[key])
        ]
    kinds = [next((kind for kind in (bool, (int, float), str, list, dict) if isinstance(value, kind)), None)
             for value in (found, wanted)]  # fmt: skip
    return [] if kinds[0] == kinds[1] or found is None or wanted is None else [place]
