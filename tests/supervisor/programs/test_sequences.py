"""Programs over sequences: a hidden state that is carried on, and packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.supervisor.programs.comparison import Loop, check_loop, draw, draw_whole, plain_pair


class Recurrent(nn.Module):
    """A language model that takes and returns its hidden state, or takes packed sequences."""

    def __init__(self, packed: bool = False) -> None:
        super().__init__()
        self.vectors, self.cell, self.last = nn.Embedding(20, 8), nn.LSTM(8, 8), nn.Linear(8, 20)
        self.packed = packed

    def forward(self, words: Any, state: Any = None) -> Any:
        if self.packed:
            vectors = words._replace(data=self.vectors(words.data))
            return self.last(self.cell(vectors)[1][0][-1])
        outputs, state = self.cell(self.vectors(words), state)
        return self.last(outputs).flatten(0, 1), state


STATE = (draw(1, 4, 8), draw(1, 4, 8, seed=1))
SENTENCES = [draw_whole(20, 11, 4, seed=i) for i in range(6)]
LENGTHS = torch.tensor([9, 7, 4, 2])
PACKED = [(nn.utils.rnn.pack_padded_sequence(s[:9], LENGTHS), s[10]) for s in SENTENCES]


def state_loss(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], targets.reshape(-1))


LOOPS = {
    "a hidden state": Loop(
        Recurrent,
        [((s[:-1], STATE), s[1:]) for s in SENTENCES],
        lambda model, batch: state_loss(model(*batch[0]), batch[1]),
        state_loss,
    ),
    "no hidden state yet": Loop(
        Recurrent,
        [((s[:-1], None), s[1:]) for s in SENTENCES],
        lambda model, batch: state_loss(model(*batch[0]), batch[1]),
        state_loss,
    ),
    "packed sequences": plain_pair(F.cross_entropy, lambda: Recurrent(packed=True), PACKED),
}


@pytest.mark.parametrize("program", LOOPS.values(), ids=LOOPS)
def test_a_loop_over_sequences_trains_as_by_hand(program: Loop) -> None:
    check_loop(program)
