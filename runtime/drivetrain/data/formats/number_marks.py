"""Forms of numbers in data files: minus signs, accounting brackets, and marks of a missing value.

pyarrow is imported in the functions, since `drivetrain validate` reads the marks and must start fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMON_MISSING_MARKS = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None")
"""Marks of a missing value that most programs write."""
RARE_MISSING_MARKS = (
    *("?", "-", "--", "---", "\u2013", "\u2014", ".", "..", "na", "n.a.", "N.A.", "none", "NONE", "Null", "nil", "NAN"),
    *("<NA>", "NaT", "\\N", "(null)", "n/d", "N/D", "n.d.", "N.D.", "s/d", "S/D", "k.A.", "k. A."),
    # Errors of spreadsheet formulas, in several languages.
    *("#N/D", "#NV", "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!", "#\u00a1DIV/0!", "#\u00a1VALOR!"),
    *("#VALOR!", "#\u00a1REF!", "#\u00a1NUM!", "#\u00a1NULO!", "#\u00bfNOMBRE?", "#WERT!", "#BEZUG!", "#ZAHL!"),
    *("#VALEUR!", "#VALORE!", "#NOME?", "#NOM?"),
)
"""Marks accepted in columns of numbers only; a note reports where they occur."""
MISSING_NUMBERS = (*COMMON_MISSING_MARKS, *RARE_MISSING_MARKS)
"""Cells that count as missing in columns of numbers; in columns of text only an empty cell does."""
_MINUS_SIGNS = "[\u2212\ufe63\uff0d]"
"""Typographic minus sign, and its small and full-width forms."""


def unify_signs(cells: Any) -> Any:
    """Write negative numbers with a hyphen in front. Minus signs in other texts become hyphens, too."""
    from pyarrow import compute

    for pattern, replacement in (
        (_MINUS_SIGNS, "-"),
        (r"^\x{2013}\s?([%€$£.,]*\d)", r"-\1"),  # an en dash
        (r"^\(\s*([%€$£]?)\s*([.,]?\d[^()+-]*)\)$", r"-\1\2"),  # accounting brackets: (12)
        (r"^(\d[\d.,' ]*)-$", r"-\1"),  # the sign after the number: 12-
        (r"^([-+])\s+([%€$£.,]*\d)", r"\1\2"),  # a space after the sign: - 12
    ):
        cells = compute.replace_substring_regex(cells, pattern, replacement)
    return compute.utf8_rtrim_whitespace(cells)


def match(cells: Any, pattern: str) -> Any:
    """Return whether a part of each cell matches, as a boolean array; false for empty cells."""
    from pyarrow import compute

    return compute.fill_null(compute.match_substring_regex(cells, pattern), False)


def have_leading_zeros(cells: Any) -> bool:
    """Return whether texts are whole numbers, some with leading zeros such as 02139: labels, such as postal codes."""
    from pyarrow import array, compute

    if not compute.any(match(cells, r"^\s*0\d+\s*$")).as_py():
        return False
    is_missing = compute.is_in(compute.utf8_trim_whitespace(cells), array(MISSING_NUMBERS, cells.type))
    is_label = compute.or_(compute.or_(match(cells, r"^\s*\d+\s*$"), is_missing), compute.is_null(cells))
    return bool(compute.all(is_label).as_py())


def count_missing_marks(cells: Any) -> dict[str, int]:
    """Count the cells with each rare mark of a missing value."""
    from pyarrow import array, compute

    marked = cells.filter(compute.is_in(cells, array(RARE_MISSING_MARKS, cells.type)))
    return {row["values"]: row["counts"] for row in compute.value_counts(marked).to_pylist()}


def describe_missing_marks(name: str, counts: Mapping[str, int]) -> str:
    """Return the note about marks of a missing value in a column."""
    return f"{name}: no value where a cell is {', '.join(f'{mark} ({count:,})' for mark, count in counts.items())}"
