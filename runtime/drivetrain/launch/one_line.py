"""Refuses paths and options with line breaks and other control characters, which a script would read as commands."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from drivetrain.errors import SpecError
from drivetrain.job.formatting import printable

_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
"""Control characters, bytes that are not UTF-8, and separators of lines and paragraphs."""


def check(texts: Mapping[str, object]) -> None:
    """Check what is written into a file for another program, or into its command line.

    Args:
        texts: texts and paths, by how messages name them.

    Raises:
        SpecError: if one contains a control character.
    """
    for name, value in texts.items():
        text = str(value)
        if any(unicodedata.category(letter) in _CATEGORIES for letter in text):
            raise SpecError(
                f"{name}: {printable(text, 200)!r} contains a control character, such as a line break",
                "text on one line, in UTF-8",
                "rename it" if "/" in text else "write it without",
            )
