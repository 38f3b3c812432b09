"""Checks a job that starts from an earlier run against what that run was trained on, before a run folder exists.

What needs the data, such as their channels and the rows of a window, is checked by the readers of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.job.images import ImageJob
from runtime.job.series import SeriesJob
from runtime.job.tables import TableJob
from runtime.job_spec.data_columns import listed
from runtime.pretrained.earlier_run import EarlierModel

SHOWN = 8
"""Largest number of columns in a message."""


def check(earlier: EarlierModel) -> None:
    """Check the keys of the job.

    Raises:
        SpecError: if one contradicts the earlier run.
    """
    job = earlier.job
    if isinstance(job, ImageJob):
        _images(job, earlier)
    elif isinstance(job, SeriesJob):
        _series(job, earlier)
    elif isinstance(job, TableJob):
        _table(job, earlier)


def _images(job: ImageJob, earlier: EarlierModel) -> None:
    """The way images become square, and channels; and the size, unless the network takes any."""
    fixed = {"channels": None, "fit": "crop"} | ({} if earlier.builder == "images" else {"image_size": None})
    for key, usual in fixed.items():
        given, known = getattr(job.data, key), earlier.preprocessing.get(key, usual)
        if key in job.data.model_fields_set and given not in ("auto", known):
            text = f"is {given}, and the earlier run was trained on {known}"
            earlier.refuse(text, str(known), f"write {known}, or leave it out", ("data", key))


def _series(job: SeriesJob, earlier: EarlierModel) -> None:
    """No feature is predicted, or the time or group; those that are named are the same."""
    theirs, data = earlier.preprocessing.get("features") or (), job.data
    for option, names in {"label": data.label or (), "time": (data.time,), "group": (data.group,)}.items():
        _refuse_known(earlier, option, names, theirs, "a column that it did not see", "use another run")
    if theirs and data.features and list(data.features) != list(theirs):
        given = f"is {', '.join(data.features)}, and the earlier run was trained on {', '.join(theirs)}"
        earlier.refuse(given, "the same columns in the same order", "leave features out", ("data", "features"))


def _table(job: TableJob, earlier: EarlierModel) -> None:
    """No feature is predicted or ignored; those that are named are the same, and of the same kind."""
    data, kinds = job.data, {kind: _names(earlier.preprocessing, kind) for kind in ("numeric", "categorical")}
    dates: dict[str, list[str]] = earlier.preprocessing.get("dates", {})
    made = {f"{name}.{part}" for name, parts in dates.items() for part in parts}
    theirs = [*(name for names in kinds.values() for name in names if name not in made), *dates]
    for key, known in (("dates", dates), ("date_format", earlier.preprocessing.get("date_format"))):
        if key in job.data.model_fields_set and job.data.model_dump(mode="json")[key] not in (known, None, {}):
            given = f"differs from the earlier run, in which it is {known or 'absent'}"
            earlier.refuse(given, "the same", f"leave data.{key} out", ("data", key))
    _refuse_known(earlier, "target", data.target, theirs, "a column that it did not see", "use another run")
    action = "remove it from data.ignore, or use another run"
    _refuse_known(earlier, "ignore", data.ignore or (), theirs, "columns that it did not see", action)
    if data.features and set(data.features) != set(theirs):
        given = f"is {listed(data.features, SHOWN)}, and the earlier run was trained on {listed(theirs, SHOWN)}"
        earlier.refuse(given, "the same columns", "leave data.features out", ("data", "features"))
    for kind, names in kinds.items():
        if strange := [name for name in getattr(data, kind) or () if name not in names]:
            given = f"has {strange[0]!r}, which is no {kind} feature of the earlier run"
            possible = f"its {kind} features: {listed(names, SHOWN) or 'none'}"
            earlier.refuse(given, possible, f"leave data.{kind} out", ("data", kind))


def _refuse_known(
    earlier: EarlierModel, option: str, names: Sequence[str | None], theirs: Sequence[str], possible: str, action: str
) -> None:
    if both := [name for name in names if name in theirs]:
        earlier.refuse(f"has {both[0]!r}, which is a feature of the earlier run", possible, action, ("data", option))


def _names(preprocessing: Mapping[str, Any], kind: str) -> list[str]:
    return [column["name"] for column in preprocessing.get(kind, ())]
