"""The features of the run that a table job starts from."""

from __future__ import annotations

from runtime.data.dataset import InputRecord
from runtime.data.labels import listed
from runtime.data.tables import features
from runtime.data.tables.column_roles import Roles
from runtime.data.tables.features import Features
from runtime.errors import SpecError
from runtime.job.tables import TableJob


def features_of(job: TableJob, settled: InputRecord) -> Features:
    """The features of that run.

    Raises:
        SpecError: if the job names other features, or predicts one of them.
    """
    fitted, data = features.from_json(settled.preprocessing), job.data
    for option, possible, action in (
        ("target", "a column that it did not see", "use another run"),
        ("ignore", "columns that it did not see", "remove it from data.ignore, or use another run"),
    ):
        if both := [name for name in getattr(data, option) or () if name in fitted.names]:
            given = f"has {both[0]!r}, which is a feature of the earlier run"
            raise SpecError([job.problem(("data", option), given, possible, action)])
    if data.features and set(data.features) != set(fitted.names):
        given = f"is {listed(data.features, 8)}, and the earlier run was trained on {listed(fitted.names, 8)}"
        raise SpecError([job.problem(("data", "features"), given, "the same columns", "leave data.features out")])
    known = known_roles(fitted)
    for option, names in (("numeric", known.numeric), ("categorical", known.categorical)):
        if strange := [name for name in getattr(data, option) or () if name not in names]:
            given = f"has {strange[0]!r}, which is no {option} feature of the earlier run"
            possible = f"its {option} features: {listed(names, 8) or 'none'}"
            raise SpecError([job.problem(("data", option), given, possible, f"leave data.{option} out")])
    return fitted


def known_roles(earlier: Features) -> Roles:
    """The kind of each column in an earlier run, which the job's file may seem to contradict."""
    return Roles([number.name for number in earlier.numbers], [category.name for category in earlier.categories])
