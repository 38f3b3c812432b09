"""The tables of docs/scale.md are what the model says today, and it says what it should where the answer is known."""

from __future__ import annotations

import itertools
import re

import pytest

from docs.generate import scale_tables
from docs.generate.scale_tables import GPUS, LINKS, NETWORKS
from tests.paths import ROOT

PAGE = ROOT / "docs/scale.md"


def test_the_page_has_the_tables_of_its_generator() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == scale_tables.renewed(page), "make it again: python -m docs.generate.scale_tables docs/scale.md"


def test_sources_exist() -> None:
    for text in [network.source for network in NETWORKS] + [row[2] for row in scale_tables.CONSTANTS]:
        assert text
        for link in re.findall(r"\]\(([^)]+)\)", text):
            assert (ROOT / "docs" / link).exists()


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_more_gpus_and_slower_links_never_make_a_step_shorter(network: scale_tables.Network) -> None:
    steps = [[network.on(gpus).step(link) for link in LINKS] for gpus in GPUS]
    for row, after in itertools.pairwise(steps):
        assert row == sorted(row, reverse=True)
        assert all(longer >= shorter for shorter, longer in zip(row, after, strict=True))
    assert steps[0] == pytest.approx([network.step] * len(LINKS))


def test_only_what_does_not_fit_one_gpu_is_divided() -> None:
    assert [network.is_divided for network in NETWORKS] == [False, False, True]
    large = NETWORKS[2]
    assert large.on(16).held == large.on(1).one.state / 16
    assert NETWORKS[0].on(16).held == NETWORKS[0].on(1).held
