"""Odd shapes on every instruction set, under a heap checker: torch's and oneDNN's own kernels are what is tested."""

from __future__ import annotations

import pytest

from tests import heap
from tests.convolutions import answers, cases


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cap", heap.CAPS)
def test_convolutions(cap: str, threads: int) -> None:
    heap.require()
    odd = [
        *cases(inputs=[1, 3, 5, 7, 12, 17], outputs=[1, 3, 8], kernel=[1, 2, 3, 5], stride=[1, 2, 3], padding=[0, 1],
               size=[1, 2, 3, 5, 9], batch=[1, 3], channels_last=[True, False]),
        *cases(inputs=[3, 7, 12, 16], kernel=[1, 3], stride=[1, 2, 3], size=[18, 63, 64, 66], channels_last=[True, False]),
        *cases(inputs=[3, 12], kernel=[1, 3], stride=[1, 2], size=[5, 64], dtype=["bfloat16"], channels_last=[True, False]),
        *cases(inputs=[6], outputs=[6, 12], groups=[2, 3, 6], kernel=[1, 3], stride=[1, 2], size=[5, 32]),
        *cases(kernel=[2, 3], dilation=[2, 3], size=[9, 31], inputs=[3, 7]),
        *cases(kind=["ConvTranspose2d"], inputs=[1, 3, 7], outputs=[1, 3, 8, 12], kernel=[1, 2, 3], size=[1, 5, 32]),
        *cases(kind=["Conv1d"], inputs=[1, 3, 7, 12], kernel=[1, 2, 3, 5], stride=[1, 2, 3], size=[7, 64, 501]),
        *cases(inputs=[3, 12], size=[16, 64], compile=[True], channels_last=[True, False]),
    ]  # fmt: skip
    assert answers(odd, cap, threads) == {}
