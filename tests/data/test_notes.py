"""Notes about the data in the log."""

from __future__ import annotations

from drivetrain.data.notes import format_note
from tests.messages import says_only


def test_a_key_is_not_named_twice() -> None:
    """The log said `data: data.train: ...`."""
    assert format_note("54 training rows") == "data: 54 training rows"
    assert format_note("data.train: 3 empty cells") == "data.train: 3 empty cells"
    assert format_note("data: 1 of 3 samples is bad") == "data: 1 of 3 samples is bad"
    assert says_only(format_note("starts from runs/a-001", "model"), "model-starts-from", "runs/a-001")
    assert format_note("model.freeze freezes layers", "model") == "model.freeze freezes layers"
