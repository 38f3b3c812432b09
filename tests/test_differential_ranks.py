"""Whatever is switched on, and however many processes: the same losses as one plain process."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests import ranks_cases

LAYOUTS = ["+".join(filter(None, words)) for words in product(("plain", "norm"), ("", "channels_last"), ("", "fused"))]

OWN = ["plain+unseeded", "norm+unseeded", "plain+unlike", "plain+larger"]
"""What code of the user's own may do in each process: other first weights, other targets, another network."""


@pytest.fixture(scope="module")
def convolutional(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[float]]]:
    """Losses of all layouts by the number of processes; alone, BatchNorm sees halves as each of two would."""
    cases = [f"convolutional/{name}" for name in (*LAYOUTS, *OWN)]
    found = {}
    for count in (1, 2):
        words = ["", "+halves"][count == 1]
        each = ranks_cases.together(tmp_path_factory.mktemp(str(count)), [case + words for case in cases], count)
        assert all(one == each[0] for one in each)
        found[count] = {
            case.removeprefix("convolutional/").removesuffix(words): values for case, values in each[0].items()
        }
    return found


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("count", [1, 2])
def test_layouts_and_fused_kernels_change_nothing(
    convolutional: dict[int, dict[str, list[float]]], name: str, count: int
) -> None:
    plain = convolutional[1][name.split("+")[0]]
    assert plain[-2] < plain[0], "it learns"
    np.testing.assert_allclose(convolutional[count][name], plain, rtol=1e-9)


@pytest.mark.parametrize("name", ["plain", "norm"])
def test_first_weights_are_the_leaders(convolutional: dict[int, dict[str, list[float]]], name: str) -> None:
    np.testing.assert_allclose(convolutional[2][f"{name}+unseeded"], convolutional[1][name], rtol=1e-9)


@pytest.mark.parametrize(("name", "words"), [("plain+unlike", "process 2 of 2 has other samples than process 1"),
                                             ("plain+larger", "process 2 of 2 has other weights or buffers than")])  # fmt: skip
def test_processes_that_read_or_build_something_else_are_refused(
    convolutional: dict[int, dict[str, Any]], name: str, words: str
) -> None:
    assert words in convolutional[2][name]
