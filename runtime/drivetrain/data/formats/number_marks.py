"""Forms of numbers in data files: minus signs, accounting brackets, units, and marks of a missing value.

pyarrow is imported in the functions, since `drivetrain validate` reads the marks and must start fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMON_MISSING_MARKS = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None")
"""What most programs write for a missing value."""
RARE_MISSING_MARKS = (
    *("?", "-", "--", "---", "\u2013", "\u2014", ".", "..", "na", "n.a.", "N.A.", "none", "NONE", "Null", "nil", "NAN"),
    *("<NA>", "NaT", "\\N", "(null)", "n/d", "N/D", "n.d.", "N.D.", "s/d", "S/D", "k.A.", "k. A."),
    # Errors of spreadsheet formulas, in several languages.
    *("#N/D", "#NV", "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!", "#\u00a1DIV/0!", "#\u00a1VALOR!"),
    *("#VALOR!", "#\u00a1REF!", "#\u00a1NUM!", "#\u00a1NULO!", "#\u00bfNOMBRE?", "#WERT!", "#BEZUG!", "#ZAHL!"),
    *("#VALEUR!", "#VALORE!", "#NOME?", "#NOM?"),
)
"""Accepted in columns of numbers only; a note tells the user where they occur."""
MISSING_NUMBERS = (*COMMON_MISSING_MARKS, *RARE_MISSING_MARKS)
"""Cells that count as missing in columns of numbers; in columns of text only an empty cell does."""
_MINUS_SIGNS = "[\u2212\ufe63\uff0d]"
"""The typographic minus sign, and those of small and of full-width letters."""
_NUMBER_WITH_UNIT = r"^[-+]?[\d.,'\x{2019}\x{00a0}\x{202f}\x{2009} ]*\d(?:[eE][-+]?\d+)?(?P<space>[\s\x{00a0}\x{202f}\x{2009}]*)(?P<unit>[^\d\s.,;:()'\"+\-][^,;:()]{0,15})$"
UNITS = frozenset(
    (
        *("kg", "mg", "lb", "km", "cm", "mm", "m2", "m²", "m3", "m³", "km2", "km²", "ml", "mL"),
        *("min", "ms", "mV", "kV", "mA", "kW", "MW", "Wh", "kWh", "MWh", "Hz", "kHz", "MHz", "GHz"),
        *("bar", "mbar", "Pa", "hPa", "kPa", "MPa", "psi", "kN", "Nm", "kJ", "MJ", "rpm", "ppm", "ppb"),
        *("dB", "lx", "lm", "km/h", "m/s", "mph", "MB", "GB", "TB", "EUR", "USD", "GBP"),
    )
)
"""Units that may follow a number without a space; other letters can be part of a code, as in 12A."""
_DIGITS = (
    # 12  12.5  .5  1,234.56  1'234  1 234 (also with narrow and no-break spaces), each with an optional exponent
    r"(?:\d+(?:[.,]\d*)?|[.,]\d+|\d{1,3}(?:[.,'\x{2019}\x{00a0}\x{202f}\x{2009} ]\d{3})+(?:[.,]\d+)?)(?:[eE][-+]?\d+)?"
)
_CURRENCY_OR_UNIT = r"(?:\s*[%€$£°].{0,4}|[\s\x{00a0}]+[^\d\s,;:()\-]{1,8})?"
ANY_NUMBER = rf"^\(?[-+\x{{2212}}\x{{2013}}]?\s*[%€$£]?\s*{_DIGITS}{_CURRENCY_OR_UNIT}\)?-?$"
"""Pattern of a number in any form, with or without a unit."""


def unify_signs(cells: Any) -> Any:
    """Write negative numbers with a hyphen in front. Minus signs in other texts become hyphens, too."""
    from pyarrow import compute

    for pattern, replacement in (
        (_MINUS_SIGNS, "-"),
        (r"^\x{2013}\s?([%€$£.,]*\d)", r"-\1"),  # an en dash
        (r"^\(\s*([%€$£]?)\s*([.,]?\d[^()+-]*)\)$", r"-\1\2"),  # accounting brackets: (12)
        (r"^(\d[\d.,' ]*)-$", r"-\1"),  # the sign behind the number: 12-
        (r"^([-+])\s+([%€$£.,]*\d)", r"\1\2"),  # a space after the sign: - 12
    ):
        cells = compute.replace_substring_regex(cells, pattern, replacement)
    return compute.utf8_rtrim_whitespace(cells)


def find_unit(cells: Any) -> str:
    """The one unit behind the numbers, such as °C; empty if there are none or several, or it can be part of a code."""
    from pyarrow import compute

    parts = compute.extract_regex(cells, _NUMBER_WITH_UNIT).drop_null()
    if not len(parts):
        return ""
    units = compute.unique(compute.utf8_trim_whitespace(compute.struct_field(parts, "unit"))).to_pylist()
    if len(units) != 1:
        return ""
    is_separate = compute.all(compute.not_equal(compute.struct_field(parts, "space"), "")).as_py()
    return units[0] if is_separate or units[0] in UNITS or units[0].startswith("°") else ""


def remove_unit(cells: Any, unit: str) -> Any:
    """Remove the unit behind numbers; other cells are not changed."""
    from pyarrow import compute

    has_unit = compute.and_(compute.ends_with(cells, unit), compute.match_substring_regex(cells, _NUMBER_WITH_UNIT))
    bare = compute.utf8_rtrim_whitespace(compute.utf8_slice_codeunits(cells, 0, -len(unit)))
    return compute.if_else(has_unit, bare, cells)


def match(cells: Any, pattern: str) -> Any:
    """Whether each cell has a part that matches; a boolean array, false for empty cells."""
    from pyarrow import compute

    return compute.fill_null(compute.match_substring_regex(cells, pattern), False)


def count_missing_marks(cells: Any) -> dict[str, int]:
    """Number of cells with a rare mark of a missing value, by the mark."""
    from pyarrow import array, compute

    marked = cells.filter(compute.is_in(cells, array(RARE_MISSING_MARKS, cells.type)))
    return {row["values"]: row["counts"] for row in compute.value_counts(marked).to_pylist()}


def describe_missing_marks(name: str, counts: Mapping[str, int]) -> str:
    """The note about marks of a missing value in a column."""
    return f"{name}: no value where a cell is {', '.join(f'{mark} ({count:,})' for mark, count in counts.items())}"
