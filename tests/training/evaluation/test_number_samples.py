"""True and predicted numbers of an evaluation: the same rows whatever the batches and processes, in the units of the data."""

from __future__ import annotations

import numpy as np
import torch

from drivetrain.data.dataset import Head
from drivetrain.report.sample_sections import list_number_sections
from drivetrain.training.evaluation.worst_mistakes import MAX_ERRORS, MAX_PLOTTED, NumberSamples

HEAD = Head("", columns=("price", "days"), mean=(100.0, 5.0), std=(10.0, 2.0))
COUNT = 1000
DRAWN = torch.Generator().manual_seed(0)
TARGETS = torch.randn(COUNT, 2, generator=DRAWN)
OUTPUTS = TARGETS + torch.randn(COUNT, 2, generator=DRAWN) / 10
OUTPUTS[17, 1] += 9
OUTPUTS[18, 0] = torch.nan


def collect(*parts: np.ndarray) -> NumberSamples:
    samples = NumberSamples(HEAD)
    for ids in parts:
        samples.update(ids, OUTPUTS[ids], TARGETS[ids])
    return samples


def test_the_rows_do_not_depend_on_batches_and_processes() -> None:
    expected = collect(np.arange(COUNT)).to_json()
    assert collect(*np.array_split(np.random.default_rng(0).permutation(COUNT), 7)).to_json() == expected
    ranks = [collect(np.arange(rank, COUNT, 3)) for rank in range(3)]
    table = torch.stack([samples.to_table(rank, 3) for rank, samples in enumerate(ranks)]).sum(0)
    for samples in ranks:
        samples.read_table(table)
        assert samples.to_json() == expected


def test_the_largest_errors_and_a_spread_in_the_units_of_the_data() -> None:
    record = collect(np.arange(COUNT)).to_json()
    worst = record["mistakes"][0]
    assert (worst["sample"], worst["column"]) == (17, 1)
    np.testing.assert_allclose(worst["truth"], TARGETS[17].double() * torch.tensor(HEAD.std) + torch.tensor(HEAD.mean))
    assert all(row["sample"] != 18 for row in record["mistakes"]), "no number can be shown"
    errors = (OUTPUTS - TARGETS).abs().amax(1).nan_to_num(0)
    assert {row["sample"] for row in record["mistakes"]} == set(errors.topk(MAX_ERRORS).indices.tolist())
    assert MAX_PLOTTED - 1 <= len(record["pairs"]) <= MAX_PLOTTED
    truth = np.array([pair[0][0] for pair in record["pairs"]])
    assert abs(truth.mean() - 100) < 2, "the spread is that of all samples"


def test_the_section_of_the_report() -> None:
    record = collect(np.arange(COUNT)).to_json()
    rows = [row | {"title": f"row {row['sample']}"} for row in record["mistakes"]]
    (section,) = list_number_sections({"": record}, {"": rows})
    assert [type(block).__name__ for block in section.blocks] == ["Chart", "Chart", "Text", "Table"]
    table = section.blocks[-1]
    assert table.rows[0][:2] == ("row 17", "days")
    assert (
        list(list_number_sections({"": {"columns": ["a"], "pairs": [["x"], [[1], ["inf"]]]}}, {"": ["odd", {}]})) == []
    )
    assert list(list_number_sections({"": {"classes": ["a"], "matrix": [[1]]}}, {})) == []
