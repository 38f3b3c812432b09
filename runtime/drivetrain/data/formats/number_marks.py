"""What people write around numbers (other minus signs, brackets, units) and instead of them (marks for no value).

Nothing heavy is imported, since `drivetrain validate` reads the marks, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

USUAL_MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None")
"""What most programs write for no value."""
MISSING_MARKS = (
    *("?", "-", "--", "---", "\u2013", "\u2014", ".", "..", "na", "n.a.", "N.A.", "none", "NONE", "Null", "nil", "NAN"),
    *("<NA>", "NaT", "\\N", "(null)", "n/d", "N/D", "n.d.", "N.D.", "s/d", "S/D", "k.A.", "k. A."),
    # Spreadsheets write what went wrong, in their language.
    *("#N/D", "#NV", "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!", "#\u00a1DIV/0!", "#\u00a1VALOR!"),
    *("#VALOR!", "#\u00a1REF!", "#\u00a1NUM!", "#\u00a1NULO!", "#\u00bfNOMBRE?", "#WERT!", "#BEZUG!", "#ZAHL!"),
    *("#VALEUR!", "#VALORE!", "#NOME?", "#NOM?"),
)
"""Other marks for no value in columns of numbers; a note says where they occur."""
MISSING_NUMBERS = (*USUAL_MISSING, *MISSING_MARKS)
"""Cells without a value in columns of numbers; in columns of text only an empty cell is one."""
_MINUS = "[\u2212\ufe63\uff0d]"
"""Minus signs that are no hyphen: of typesetting, of small and of wide letters."""
_UNIT = r"^[-+]?[\d.,'\x{2019}\x{00a0}\x{202f}\x{2009} ]*\d(?:[eE][-+]?\d+)?(?P<space>[\s\x{00a0}\x{202f}\x{2009}]*)(?P<unit>[^\d\s.,;:()'\"+\-][^,;:()]{0,15})$"
UNITS = frozenset(
    (
        *("kg", "mg", "lb", "km", "cm", "mm", "m2", "m²", "m3", "m³", "km2", "km²", "ml", "mL"),
        *("min", "ms", "mV", "kV", "mA", "kW", "MW", "Wh", "kWh", "MWh", "Hz", "kHz", "MHz", "GHz"),
        *("bar", "mbar", "Pa", "hPa", "kPa", "MPa", "psi", "kN", "Nm", "kJ", "MJ", "rpm", "ppm", "ppb"),
        *("dB", "lx", "lm", "km/h", "m/s", "mph", "MB", "GB", "TB", "EUR", "USD", "GBP"),
    )
)
"""Units that may follow a number without a space; others could be a part of a code, as in 12A."""
_BODY = (
    r"(?:\d+(?:[.,]\d*)?|[.,]\d+|\d{1,3}(?:[.,'\x{2019}\x{00a0}\x{202f}\x{2009} ]\d{3})+(?:[.,]\d+)?)(?:[eE][-+]?\d+)?"
)
_BEHIND = r"(?:\s*[%€$£°].{0,4}|[\s\x{00a0}]+[^\d\s,;:()\-]{1,8})?"
_NUMBER_LIKE = rf"^\(?[-+\x{{2212}}\x{{2013}}]?\s*[%€$£]?\s*{_BODY}{_BEHIND}\)?-?$"


def unify_signs(cells: Any) -> Any:
    """Write negative numbers with a hyphen before them.

    They may have another minus sign, accounting brackets, or the sign behind them. Other texts with a minus sign that is no
    hyphen get a hyphen, too.
    """
    from pyarrow import compute

    unified = compute.replace_substring_regex(cells, _MINUS, "-")
    unified = compute.replace_substring_regex(unified, r"^\x{2013}\s?([%€$£.,]*\d)", r"-\1")
    unified = compute.replace_substring_regex(unified, r"^\(\s*([%€$£]?)\s*([.,]?\d[^()+-]*)\)$", r"-\1\2")
    unified = compute.replace_substring_regex(unified, r"^(\d[\d.,' ]*)-$", r"-\1")
    return compute.utf8_rtrim_whitespace(compute.replace_substring_regex(unified, r"^([-+])\s+([%€$£.,]*\d)", r"\1\2"))


def find_unit(cells: Any) -> str:
    """Find the unit behind the numbers, such as °C; empty if there is none or several, or if it can be a part of a code."""
    from pyarrow import compute

    parts = compute.extract_regex(cells, _UNIT).drop_null()
    if not len(parts):
        return ""
    units = compute.unique(compute.utf8_trim_whitespace(compute.struct_field(parts, "unit"))).to_pylist()
    if len(units) != 1:
        return ""
    is_separate = compute.all(compute.not_equal(compute.struct_field(parts, "space"), "")).as_py()
    return units[0] if is_separate or units[0] in UNITS or units[0].startswith("°") else ""


def remove_unit(cells: Any, unit: str) -> Any:
    """Remove the unit behind numbers; other cells stay as they are."""
    from pyarrow import compute

    has_unit = compute.and_(compute.ends_with(cells, unit), compute.match_substring_regex(cells, _UNIT))
    bare = compute.utf8_rtrim_whitespace(compute.utf8_slice_codeunits(cells, 0, -len(unit)))
    return compute.if_else(has_unit, bare, cells)


def find_numbers(cells: Any) -> Any:
    """Whether each cell is a number in any form, in one unit or in several; a boolean array, false for empty cells."""
    from pyarrow import compute

    return compute.fill_null(compute.match_substring_regex(cells, _NUMBER_LIKE), False)


def count_marks(cells: Any) -> dict[str, int]:
    """How many cells have a mark for no value, by the mark."""
    from pyarrow import array, compute

    marked = cells.filter(compute.is_in(cells, array(MISSING_MARKS, cells.type)))
    return {row["values"]: row["counts"] for row in compute.value_counts(marked).to_pylist()}


def list_marks(name: str, counts: Mapping[str, int]) -> str:
    """A note on the marks for no value in a column."""
    return f"{name}: no value where a cell is {', '.join(f'{mark} ({count:,})' for mark, count in counts.items())}"
