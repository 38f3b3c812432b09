"""Detects the form of the numbers of a CSV file, and reads them: decimal commas, thousands, percent signs.

`1.234,5` and `0,5` show decimal commas, `1,234.5` and `0.5` decimal points. `1,234` alone can be both, so a file with
nothing but such numbers is an error. Semicolons separate columns in many languages that write decimal
commas: there `1.234` alone can be both, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import array, bool_, compute, float64, int64, types

from drivetrain.data.formats import csv_dialect, number_marks
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.formats.number_marks import MISSING_NUMBERS
from drivetrain.errors import DataError
from drivetrain.job.formatting import printable
from drivetrain.system.spelling import clean_text

Parse = Callable[[Sequence[str], Sequence[str]], Any]
"""(columns, columns to keep as text) -> a pyarrow table."""
SIGN_NAMES = {"%": "in percent", "€": "in €", "$": "in $", "£": "in £"}
MIN_NUMBER_SHARE = 0.5
"""Smallest share of numbers among the filled cells for which a text column is read as numbers."""
SAMPLED_TEXTS = 1000
"""Number of texts of a column that are checked first, to skip columns that cannot be numbers."""
_STARTS = r"^\s*\(?\s*[-+\x{2212}\x{fe63}\x{ff0d}\x{2013}]?\s*[%€$£]?\s*[.,]?\d"
_SPACES = " \t\u00a0\u202f\u2009"
_THOUSANDS_SPACES = "[ '\u2019\u00a0\u202f\u2009]"
"""Separators of thousands in all languages."""
_ANY_THOUSANDS = rf"^[-+]?\d{{1,3}}({_THOUSANDS_SPACES}\d{{3}})+([.,]\d+)?$"
_PLAIN = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_LIST = r"^\d+(,\d+){2,}$"


def _fill_in_signs(pattern: str, decimal: str) -> str:
    """Fill in a pattern: replace D with the decimal sign and T with the separator of thousands."""
    signs = (r"\.", ",") if decimal == "point" else (",", r"\.")
    return pattern.replace("D", signs[0]).replace("T", signs[1])


_NUMBER = r"^[-+]?(\d{1,3}(T\d{3})+(D\d+)?|\d+(D\d*)?|D\d+)([eE][-+]?\d+)?$"
_SURE = r"^[-+]?(\d*D(\d{1,2}|\d{4,})|0*D\d{3}|\d{4,}D\d{3}|\d{1,3}(T\d{3})+D\d+|\d{1,3}(T\d{3}){2,})([eE][-+]?\d+)?$"
_EITHER = r"^[-+]?[1-9]\d{0,2}D\d{3}$"
DECIMALS = ("point", "comma")


@dataclass
class _Column:
    name: str
    cells: Any
    """Trimmed texts without signs and spaces between thousands, with a hyphen for any minus sign; null for no value."""
    sign: str
    """Percent sign or currency; empty for none."""
    bare: Any = None
    """Whether a cell has a value without the sign; None if the column has no sign."""
    marks: dict[str, int] = field(default_factory=dict)
    """Number of cells with a mark of a missing value, by mark."""


def read(
    table: Any, text: Sequence[str], parse: Parse, key: str, path: Path, delimiter: str, files: CsvFiles
) -> tuple[Any, str | None, list[str], dict[str, str]]:
    """Read the numbers that the parser of a table took for text, or read by the rules of another language.

    Args:
        table: a pyarrow table; its numbers with a point are already read.
        text: columns to keep unchanged.
        parse: function that reads columns of the file again, as text.
        files: the declared settings, and the dialect that decides if the file does not show it.

    Returns:
        The table, the decimal sign (point or comma; None if no number shows it), notes, and the percent sign or
        currency of each column that has one.

    Raises:
        DataError: if the decimal sign is not clear.
    """
    if files.keeps_zeros:
        table = _keep_zeros(table, text, parse)
    table, notes = _read_truth(table, text, files.missing)
    kinds = {field.name: field.type for field in table.schema if field.name not in text}
    text_columns = [name for name, kind in kinds.items() if types.is_string(kind)]
    if files.keeps_zeros:
        text_columns = [name for name in text_columns if not number_marks.have_leading_zeros(table[name])]
    suspects = [name for name in text_columns if _looks_numeric(table[name], files.missing)]
    declared = files.list_settings.get("decimal")
    if not suspects and delimiter != "semicolon" and declared != "comma":
        notes += _check_units_of_training(table, kinds, {}, key, path, files)
        return table, declared, notes, {}
    float_columns = [name for name, kind in kinds.items() if types.is_floating(kind)]
    names = [*suspects, *float_columns]
    raw: Any = parse(names, names) if names else {}
    columns = [_clean_cells(raw[name].slice(0, len(table)), name, files.missing) for name in names]
    decimal = declared or _find_decimal(columns, key, path, delimiter, float_columns, files)
    units = dict[str, str]()
    for column in columns:
        if column.name in float_columns and decimal != "comma":
            continue
        converted, number_notes = _convert_numbers(column, decimal or "point")
        _check_percent(column, converted, key, path)
        table = table.set_column(table.column_names.index(column.name), column.name, converted)
        notes += number_notes
        if types.is_string(converted.type):
            files.rewritten.add(clean_text(column.name))
        elif column.sign:
            units[clean_text(column.name)] = column.sign
    notes += _check_units_of_training(table, kinds, units, key, path, files)
    return table, decimal, notes, units


def _keep_zeros(table: Any, text: Sequence[str], parse: Parse) -> Any:
    """Read columns of whole numbers again as text if some of them have leading zeros."""
    names = [part.name for part in table.schema if types.is_integer(part.type) and part.name not in text]
    if not names:
        return table
    written = parse(names, names)
    for name in names:
        if number_marks.have_leading_zeros(cells := written[name].slice(0, len(table))):
            table = table.set_column(table.column_names.index(name), name, cells)
    return table


def _read_truth(table: Any, text: Sequence[str], missing: Sequence[str]) -> tuple[Any, list[str]]:
    """Convert text columns with only truth values and missing values to truth values; also returns notes."""
    notes = []
    for position, part in enumerate(table.schema):
        if part.name in text or not types.is_string(part.type):
            continue
        for column in (table[position].slice(0, SAMPLED_TEXTS), table[position]):
            cells = {cell: cell.strip() for cell in compute.unique(column).to_pylist() if cell is not None}
            truth = [cell for cell, bare in cells.items() if bare.lower() in ("true", "false")]
            if not truth or any(
                bare not in (*MISSING_NUMBERS, *missing) for cell, bare in cells.items() if cell not in truth
            ):
                break
        else:
            is_truth = compute.is_in(table[position], array(truth, table[position].type))
            values = compute.if_else(is_truth, compute.utf8_trim_whitespace(table[position]), None).cast(bool_())
            if marks := number_marks.count_missing_marks(compute.utf8_trim_whitespace(table[position])):
                notes.append(number_marks.describe_missing_marks(part.name, marks))
            table = table.set_column(position, part.name, values)
    return table, notes


def _check_units_of_training(
    table: Any, kinds: Mapping[str, Any], units: Mapping[str, str], key: str, path: Path, files: CsvFiles
) -> list[str]:
    """Refuse a column in percent that was not in percent in training, or the reverse: 0.5 is not 0.5 %.

    A column in another currency is refused, too. Without a currency, the currency of training is assumed, with a note.

    Zeros and empty cells are the same in both forms.
    """
    notes: list[str] = []
    if files.units is None:
        return notes
    for name in kinds:
        kind = table.schema.field(name).type
        was, unit = files.units.get(clean_text(name), ""), units.get(clean_text(name), "")
        if was == unit or not (types.is_integer(kind) or types.is_floating(kind)):
            continue
        if row := next((row for row, cell in enumerate(table[name].to_pylist(), start=1) if cell), 0):
            example = compute.cast(table[name], "string")[row - 1].as_py() + unit
            if not (was and unit) and "%" not in (was, unit):
                bare = "here" if was else "in the training data"
                notes.append(f"{name}: without a currency {bare}, read as {SIGN_NAMES[was or unit]}")
                continue
            first = SIGN_NAMES[was] if was else "not in percent"
            raise DataError(
                f'{path}: column "{name}" is {first} in the training data, and {csv_dialect.name_row(path, row)} has `{example}`',
                "the form of the training data: a percent sign in each cell, or in none"
                if "%" in (was, unit)
                else "the currency of the training data",
                "write the column in that form",
                key=key,
            )
    return notes


def _looks_numeric(column: Any, missing: Sequence[str]) -> bool:
    """Return whether at least half of the distinct texts are numbers, and one of them needs its form detected."""
    distinct = compute.unique(column)
    start = distinct.slice(0, SAMPLED_TEXTS)
    if _count_matches(start, _STARTS) < len(start) / 10:
        # A column of texts or names, which may be long.
        return False
    cleaned = _clean_cells(distinct, "", missing)
    cells, filled = cleaned.cells, len(cleaned.cells) - cleaned.cells.null_count
    # Plain numbers as written: the parser read them as text because of the other cells.
    plain, lists = _count_matches(distinct, _PLAIN), _count_matches(cells, _LIST)
    number = [number_marks.match(cells, _fill_in_signs(_NUMBER, name)) for name in DECIMALS]
    either = compute.sum(compute.or_(*number)).as_py() or 0
    grouped = _count_matches(distinct, _ANY_THOUSANDS)
    thousands = sum(_count_matches(cells, _fill_in_signs(r"^[-+]?\d{1,3}(T\d{3})+$", name)) for name in DECIMALS)
    return (
        either >= max(1, MIN_NUMBER_SHARE * filled)
        and lists <= thousands
        and (either > plain or cleaned.sign != "" or grouped > 0 or bool(cleaned.marks))
    )


def _check_percent(column: _Column, converted: Any, key: str, path: Path) -> None:
    """Refuse a column with only some numbers in percent: 50% would be 50, and 0.5 next to it 0.5."""
    if column.sign != "%" or types.is_string(converted.type):
        return
    row = compute.index(compute.and_(column.bare, compute.not_equal(converted, 0)), True).as_py()
    if row >= 0:
        cell = printable(column.cells[row].as_py(), 40)
        raise DataError(
            f'{path}: column "{column.name}" is {SIGN_NAMES[column.sign]}, and {csv_dialect.name_row(path, row + 1)} has `{cell}` without the sign',
            "a percent sign in each cell of a column, or in none",
            "write the column in one form",
            key=key,
        )


def _count_matches(cells: Any, pattern: str) -> int:
    return int(compute.sum(compute.match_substring_regex(cells, pattern)).as_py() or 0)


def _clean_cells(column: Any, name: str, missing: Sequence[str]) -> _Column:
    """Trim the cells of a text column, empty its marks of missing values, and remove its sign."""
    cells = compute.utf8_trim(column, _SPACES)
    marks = number_marks.count_missing_marks(cells)
    empty = compute.is_in(cells, array([*MISSING_NUMBERS, *missing], cells.type))
    cells = number_marks.unify_signs(compute.if_else(empty, None, cells))
    filled = len(cells) - cells.null_count
    sign = next(
        (one for one in SIGN_NAMES if _count_matches(cells, rf"^[-+]?[{one}]|[{one}]$") > MIN_NUMBER_SHARE * filled), ""
    )
    unsigned = None
    if sign:
        is_signed = compute.match_substring_regex(cells, rf"^[-+]?[{sign}]|[{sign}]$")
        unsigned = compute.invert(is_signed)
        bare = compute.utf8_trim(compute.replace_substring_regex(cells, rf"^([-+]?)[{sign}]|[{sign}]$", r"\1"), _SPACES)
        cells = compute.if_else(is_signed, bare, cells)
    joined = compute.replace_substring_regex(cells, _THOUSANDS_SPACES, "")
    cells = compute.if_else(compute.match_substring_regex(cells, _ANY_THOUSANDS), joined, cells)
    return _Column(name, cells, sign, unsigned, marks)


def _find_decimal(
    columns: Sequence[_Column], key: str, path: Path, delimiter: str, float_columns: Sequence[str], files: CsvFiles
) -> str | None:
    """Find the decimal sign that the cells show; None if no cell shows one."""
    sure_examples = {name: _find_first_match(columns, path, _fill_in_signs(_SURE, name)) for name in DECIMALS}
    if sure_examples["point"] and sure_examples["comma"]:
        raise DataError(
            f"{path} has decimal points ({sure_examples['point']}) and decimal commas ({sure_examples['comma']})",
            f"one decimal sign for all numbers of a file, which {files.key('decimal')} can name",
            f"write all numbers with one decimal sign, or {files.advice('decimal', ['comma', 'point'])}: cells with the "
            "other sign are then no numbers",
            key=key,
        )
    if sure_sign := next((name for name, example in sure_examples.items() if example), None):
        return sure_sign
    doubtful = [column for column in columns if column.name not in float_columns or delimiter == "semicolon"]
    either_examples = (_find_first_match(doubtful, path, _fill_in_signs(_EITHER, name)) for name in reversed(DECIMALS))
    either = next(filter(None, either_examples), "")
    if not either or (files.usual and files.usual.decimal):
        return files.usual.decimal if files.usual and either else None
    cell = either.rsplit("`", 2)[1]
    one, thousand = cell.replace(",", "."), cell.replace(",", "").replace(".", "")
    right = ("comma", "point") if "," in cell else ("point", "comma")
    raise DataError(
        f"{path}: {either} can be {one} or {thousand}, and no other number of the file tells",
        f"a decimal comma or a decimal point, in {files.key('decimal')}",
        f"{files.advice('decimal', [right[0]])} if it is {one}, {right[1]} if it is {thousand}",
        key=key,
    )


def _find_first_match(columns: Sequence[_Column], path: Path, pattern: str) -> str:
    """Find the first cell that matches, with its place; empty if none matches."""
    for column in columns:
        row = compute.index(number_marks.match(column.cells, pattern), True).as_py()
        if row >= 0:
            cell = printable(column.cells[row].as_py(), 40)
            return f'column "{column.name}" {csv_dialect.name_row(path, row + 1)}: `{cell}`'
    return ""


def _convert_numbers(column: _Column, decimal: str) -> tuple[Any, list[str]]:
    """Convert a column to numbers, or to text with decimal points if a cell is no number; also returns notes."""
    cells = column.cells
    good = number_marks.match(cells, _fill_in_signs(_NUMBER, decimal))
    point, thousands = (".", ",") if decimal == "point" else (",", ".")
    plain = compute.replace_substring(compute.replace_substring(cells, thousands, ""), point, ".")
    values = compute.if_else(good, plain, cells)
    notes = [f"{column.name}: {SIGN_NAMES[column.sign]}, read without the sign"] if column.sign else []
    if int(compute.sum(good).as_py() or 0) + cells.null_count < len(cells):
        return values, notes
    if column.marks:
        notes.append(number_marks.describe_missing_marks(column.name, column.marks))
    is_integer = _count_matches(values, r"^[-+]?\d{1,18}$") + values.null_count == len(values)
    return compute.cast(values, int64() if is_integer else float64()), notes
