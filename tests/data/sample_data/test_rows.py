"""Sample series and tables: the same for the same seed, of the shape that the example jobs expect."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from pyarrow import csv, parquet

from drivetrain.data.load_data import load
from drivetrain.data.sample_data import series, tables, write
from drivetrain.errors import DataError
from drivetrain.job_spec import load_job as job_spec
from tests.paths import ROOT


@pytest.mark.parametrize("kind", [series, tables])
def test_the_same_for_the_same_seed(tmp_path: Path, kind: ModuleType) -> None:
    one, same, other = (kind.write(tmp_path / name, 300, seed) for name, seed in (("a", 3), ("b", 3), ("c", 4)))
    assert [path.name for path in one] == [path.name for path in same]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, same, strict=True))
    assert all(a.read_bytes() != b.read_bytes() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("name", "kind", "inputs"),
    [("series", series, [torch.float32]), ("table", tables, [torch.float32, torch.int32])],
)
def test_example_jobs_read_them(tmp_path: Path, name: str, kind: ModuleType, inputs: list[torch.dtype]) -> None:
    (train, new) = kind.write(tmp_path / "data" / name, 4000, seed=0)
    copy = tmp_path / f"{name}.yaml"
    copy.write_text((ROOT / "jobs" / f"{name}.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    data = load(job_spec.load(copy))
    assert [x.dtype for x in data.train.gather(np.arange(3))] == inputs
    assert len(csv.read_csv(new)) >= 200
    table = csv.read_csv(train) if train.suffix == ".csv" else parquet.read_table(train)
    assert len(table) == 4000
    assert any(column.null_count for column in table.columns)


@pytest.mark.parametrize("name", ["series", "table"])
def test_an_example_without_its_data_says_how_to_make_it(tmp_path: Path, name: str) -> None:
    copy = tmp_path / f"{name}.yaml"
    lines = (ROOT / "jobs" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    copy.write_text("\n".join(line for line in lines if not line.startswith("#")), encoding="utf-8")
    with pytest.raises(DataError, match=rf"make the data: drivetrain sample {name} data/{name} --size \d+"):
        job_spec.load(copy)


@pytest.mark.parametrize("path", ["data/table/orders.csv", "data/tables/train.parquet", "data"])
def test_another_path_gets_no_recipe_for_sample_data(path: str) -> None:
    assert write.command(path) is None
