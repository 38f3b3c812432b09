"""Recognizes the form of times in the cells of a column, and reads them, for `init`, `validate`, tables and series.

A form is a format of strptime, or the name of a count such as `seconds`; text such as 2024-05-31 08:30:00 needs none.
numpy and pyarrow are imported in the functions, since `drivetrain validate` recognizes forms and must start fast.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from drivetrain.errors import DataError

if TYPE_CHECKING:
    import pyarrow

    from drivetrain.data.formats.column_values import Mask
    from drivetrain.data.source import Source

ISO = "iso"
"""Form that `find_form` returns for text such as 2024-05-31 08:30:00, which is read without a form."""
COUNTS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
"""Ticks per second of each form of numbers that count from 1970, in UTC."""
EXCEL = "excel"
"""Form of days since 1899-12-30, as spreadsheets store them."""
POSSIBLE = "times as 2024-05-31, 2024-05-31 08:30:00, 31.05.2024, May 31 2024, 20240531, 08:30, or seconds since 1970"
ADVICE = (
    'set data.date_format to the form of the cells, such as "%d.%m.%Y %H:%M", seconds, milliseconds or excel; else write them as '
    "2024-05-31"
)
TIMES_SHARE = 0.5
"""Smallest share of times among the filled cells for which a column is read as times."""
FORM_SHARE = 0.9
"""Smallest share of distinct cells in one form for which a column has this form."""
MAX_COMPARED_CELLS = 1000
"""Largest number of distinct cells used to recognize the form of a column."""
NAMES = (
    *("time", "timestamp", "datetime", "date", "when", "t", "ts", "fecha", "hora", "tiempo", "zeit", "datum"),
    *("epoch", "unix", "at"),
)
"""Words in the names of time columns; plain numbers count as times only with one of them, or if the spec says so."""
_DATE_ENDINGS = ("date", "datum", "fecha")
_ISO_TEXT = (
    r"^\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])([T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"
)
_ISO = re.compile(_ISO_TEXT, re.ASCII)
_CLOCK = re.compile(
    r"(^|[T :]|, )(?:[01]?\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?( ?[AP]M)?( ?)(Z|UTC|GMT|[+-]\d\d:?\d\d)?$",
    re.I | re.A,
)
_COMPACT = re.compile(
    r"(?:1[5-9]|2[01])\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?P<clock>(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d)?)?",
    re.A,
)
_MONTH = re.compile(
    r"\b(?:jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sep(tember)?|oct(ober)?|nov(ember)?|dec(ember)?)\b",
    re.I,
)
_WEEKDAY = re.compile(r"\b(?:mon|tues?|wed(nes)?|thu(rs)?|fri|sat(ur)?|sun)(day)?\b", re.I)
_RANGES = {"%m": 12, "%d": 31}
_FIRST_COUNT, _LAST_COUNT = 157_766_400, 4_102_444_800  # 1975 and 2100, in seconds
_FIRST_DAY, _LAST_DAY = 18_264, 73_051  # 1950 and 2100, in days of spreadsheets
_EXCEL_EPOCH = 25_569  # 1970-01-01
_MOST_DAYS = 100_000  # before and after 1970
_CLOCK_DAYS = 25_567  # from 1900-01-01, strptime's day for a time without a date, to 1970-01-01
_DAY_MICROSECONDS = 86_400_000_000


def find_form(texts: Sequence[str], name: str = "", *, declared: bool = False) -> str | None:
    """Recognize the form of distinct cells: ISO, a count, or a form as in strptime; None if they are no times.

    If days and months are ambiguous, both forms are returned, joined by ` or `. Plain numbers are times only if the
    column's `name` says so, or if the user declared them as times: populations and prices look like seconds, too.
    """
    cells = [text.strip() for text in texts[:MAX_COMPARED_CELLS]]
    if len(cells) < 2 and not declared:
        return None
    least = FORM_SHARE * len(cells)
    if sum(map(is_plain_number, cells)) >= least > 0:
        return _find_number_form(cells, least, name, declared)
    if cells and sum(_ISO.match(cell) is not None for cell in cells) >= least:
        return ISO
    cell_forms = [(*cell_form, cell) for cell in cells if (cell_form := _find_cell_form(cell))]
    counts = Counter(cell_form for cell_form, _, _ in cell_forms).most_common(1)
    if not counts or counts[0][1] < least:
        return None
    form = counts[0][0]
    pairs = [pair for cell_form, pair, _ in cell_forms if cell_form == form and pair]
    if not declared and all(_is_season_or_version(cell) for cell_form, _, cell in cell_forms if cell_form == form):
        return None
    if not pairs:
        return form
    day_first = any(first > 12 for first, _ in pairs) or form.startswith("{0}.")
    month_first = any(second > 12 for _, second in pairs)
    forms = [form.format(*order) for order in (("%d", "%m"), ("%m", "%d"))]
    if day_first and month_first:
        return None
    return forms[0] if day_first else forms[1] if month_first else " or ".join(forms)


def has_clock_alone(form: str | None) -> bool:
    """Return whether cells of a form are times of a day without a date."""
    return bool(form) and re.search("%[YyDFxcmbBdjGs]", str(form).replace("%%", "")) is None and "%" in str(form)


def is_time(cell: str, form: str | None) -> bool:
    """Return whether a cell is empty or a time: of `form` or ISO; if `form` is None, of any form that it shows."""
    if not cell:
        return True
    if _ISO.match(cell):
        try:
            return datetime.fromisoformat(re.sub(r"\.\d+", "", cell)).year > 0
        except ValueError:
            return False
    if form is None:
        return is_plain_number(cell) or _find_cell_form(cell) is not None
    if "%" not in form:
        return form != ISO and is_plain_number(cell)
    if "%z" in form:
        cell = re.sub(r"(Z|UTC|GMT)$", "+0000", cell)
    for tried in (form, form.replace("%b", "%B"), form.replace("%B", "%b")):
        try:
            return datetime.strptime(cell, tried).year >= 1000
        except ValueError:
            continue
    return False


def check_form(recognized_form: str | None, column: str, cell_text: str, key: str) -> str:
    """Check the form that was recognized in a declared column of times, and return it.

    `column` names the column and its file, `cell_text` one of its cells with its row, `key` the file in the spec.

    Raises:
        DataError: if there is none, or two are possible.
    """
    first, _, second = (recognized_form or "").partition(" or ")
    if second:
        raise DataError(
            f"{column} has times that are {first} or {second}: {cell_text}",
            "a form that says which number is the day, in data.date_format",
            f'set data.date_format: "{first}" if the day comes first, "{second}" if the month does',
            key=key,
        )
    if recognized_form in (None, ISO):
        raise DataError(f"{column} has no known form of times: {cell_text}", POSSIBLE, ADVICE, key=key)
    return first


def is_plain_number(cell: str) -> bool:
    """Return whether a cell is a number as Python writes it."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_season_or_version(cell: str) -> bool:
    """Return whether a cell may be a season, such as 2011-12, or a version, such as 1.2.13."""
    years = re.fullmatch(r"(\d{4})[-/](\d\d)", cell)
    follows = years and (int(years[2]) - int(years[1])) % 100 == 1
    return bool(follows or re.fullmatch(r"[1-9]\d?\.[1-9]\d?\.\d\d", cell))


def _find_number_form(cells: Sequence[str], least: float, name: str, declared: bool) -> str | None:
    compact = [match for cell in cells if (match := _COMPACT.fullmatch(cell))]
    if len(compact) >= least:
        clock = len(compact[0]["clock"] or "")
        return "%Y%m%d" + "%H%M%S"[:clock]
    values = [float(cell) for cell in cells if is_plain_number(cell)]
    words = re.split(r"[\W_]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", name).casefold().strip())
    is_date = declared or words[-1].endswith(_DATE_ENDINGS)
    ranges: dict[str, tuple[int, int]] = {}
    if is_date or words[-1] in NAMES or any(len(word) > 2 and word in NAMES for word in words):
        ranges |= {form: (_FIRST_COUNT * ticks, _LAST_COUNT * ticks) for form, ticks in COUNTS.items()}
    if is_date:
        ranges |= {EXCEL: (_FIRST_DAY, _LAST_DAY), "%Y": (1500, 2200)}
    return next((form for form, (low, high) in ranges.items() if sum(low <= v < high for v in values) >= least), None)


def _find_cell_form(cell: str) -> tuple[str, tuple[int, int] | None] | None:
    """Find the form of one cell, and the two numbers, at {0} and {1} in the form, that may be day and month."""
    clock, form = _CLOCK.search(cell), ""
    if clock:
        gap, second, fraction, half, space, zone = clock.groups()
        form = f"{gap}{'%I' if half else '%H'}:%M{':%S' if second else ''}{'.%f' if fraction else ''}"
        form += f"{half[:-2]}%p" if half else ""
        form += f"{space}%z" if zone else ""
        cell = cell[: clock.start()]
        if not cell:
            return form, None
    cell = _WEEKDAY.sub(lambda match: "%a" if len(match[0]) == 3 else "%A", cell)
    named = _MONTH.sub(lambda match: "%b" if len(match[0]) == 3 else "%B", cell)
    numbers = re.findall(r"\d+", named)
    year = {4: "%Y", 2: "%y"}
    pair = None
    if named != cell:
        # A month alone is a category, and in 20-Sep the number may be the day.
        has_year = len(numbers) == 2 or re.search(r"\d{4}|%[bB][-/]\d\d$", named)
        kinds = ["%d", year.get(len(numbers[-1]), "")][2 - len(numbers) :] if numbers and has_year else [""]
    elif len(numbers) in (2, 3) and len(numbers[0]) == 4:
        kinds = ["%Y", "%m", "%d"][: len(numbers)]
    elif len(numbers) == 3 and len(numbers[2]) in year:
        pair = int(numbers[0]), int(numbers[1])
        kinds = ["{0}", "{1}", year[len(numbers[2])]]
        # One is the day, and the other, up to 12, the month.
        if not (1 <= min(pair) <= 12 and max(pair) <= 31):
            return None
    else:
        return None
    if len(kinds) != len(numbers) or not all(kinds):
        return None
    if any(
        kind in _RANGES and not 1 <= int(number) <= _RANGES[kind] for number, kind in zip(numbers, kinds, strict=True)
    ):
        return None
    remaining_kinds = iter(kinds)
    date_form = re.sub(r"\d+", lambda _: next(remaining_kinds), named)
    separators = re.sub(r"%[A-Za-z]|\{\d\}", "", date_form)
    is_date = re.fullmatch(
        r"[-/. ,]*" if named != cell else r"[-/]" if len(numbers) == 2 else r"([-/. ])\1", separators
    )
    return (date_form + form, pair) if is_date else None


@dataclass(frozen=True)
class Times:
    """Times of a column."""

    values: Any
    """pyarrow timestamps; null for cells that are empty or no time."""
    is_wrong: Mask
    """Mask of the filled cells that are no time."""
    form: str | None = None
    """Form of the cells; None if they are in ISO format, or stored as times."""


def read(
    column: pyarrow.ChunkedArray, name: str, source: Source, form: str | None = None, *, later: bool = False
) -> Times:
    """Read a column of times: by its type, in ISO format, by `form`, or by the form that the cells show.

    A `later` file of a model may have another form than `form`.

    Raises:
        DataError: if most cells are no times, or the form is not clear.
    """
    import numpy as np
    from pyarrow import compute, timestamp, types

    from drivetrain.data.formats import column_values

    kind = column_values.kind(column)
    if types.is_date(column.type) or types.is_timestamp(column.type) or kind == "nothing":
        stored = column if types.is_timestamp(column.type) else compute.cast(column, timestamp("us"))
        return Times(stored, np.zeros(len(column), np.bool_))
    description = f'column "{name}" of {source.path}'
    if types.is_boolean(column.type) or not (kind in ("text", "number") or types.is_time(column.type)):
        raise DataError(f"{description} is {column.type}", POSSIBLE, "name a column of times", key=source.key)
    texts = column_values.texts(column)
    recognized_form = None if form and not later else find_form(_list_cells(texts), declared=True)
    for tried in dict.fromkeys([form, ISO if kind == "text" and (later or not form) else None, recognized_form]):
        if tried and " or " not in tried:
            times, is_wrong = _parse(texts, tried, name, source)
            if is_wrong.sum() <= TIMES_SHARE * (len(texts) - texts.null_count):
                return Times(times, is_wrong, None if tried == ISO else tried)
    cells = texts.to_pylist()
    is_wrong = np.array([cell is not None and not is_time(cell, form) for cell in cells])
    row = int((is_wrong if is_wrong.any() else texts.is_valid().to_numpy(zero_copy_only=False)).argmax())
    cell_text = f"{source.name_row(row)} has {column_values.format_cell(column, row)}"
    if not form:
        form = check_form(recognized_form, f"{description} is {column.type}, and", cell_text, source.key)
    raise DataError(
        f'{int(is_wrong.sum()):,} cells of column "{name}" of {source.path} are no dates in the form {form}: {cell_text}',
        "one form for all times, in data.date_format",
        "correct the cells or data.date_format; %d is the day, %m the month, %Y the year, %H:%M:%S the time",
        key=source.key,
    )


def recognize(column: pyarrow.ChunkedArray, name: str, *, declared: bool = False) -> str | None:
    """Recognize times by the type or cells of a column: ISO for stored times, else the result of `find_form`."""
    from pyarrow import types

    from drivetrain.data.formats import column_values

    kind = column_values.kind(column)
    if kind == "time" and not types.is_time(column.type):
        return ISO
    if types.is_boolean(column.type) or not (kind in ("text", "number") or types.is_time(column.type)):
        return None
    return find_form(_list_cells(column_values.texts(column)), name, declared=declared)


def _list_cells(texts: pyarrow.ChunkedArray) -> list[str]:
    """List the first distinct cells, without empty ones."""
    from drivetrain.data.formats import column_values

    return column_values.different(texts)[:MAX_COMPARED_CELLS]


def _parse(texts: pyarrow.ChunkedArray, form: str, name: str, source: Source) -> tuple[Any, Mask]:
    """Read texts by their form; returns timestamps, null for no time, and a mask of the filled cells that are none."""
    import numpy as np
    from pyarrow import array, compute, scalar, timestamp

    from drivetrain.data.formats import column_values

    if form == EXCEL or form in COUNTS:
        values, is_wrong = column_values.numbers(texts)
        days = values - _EXCEL_EPOCH if form == EXCEL else values / (86_400 * COUNTS[form])
        is_wrong |= np.abs(days) > _MOST_DAYS
        is_empty = is_wrong | np.isnan(values)
        # Days of spreadsheets are rounded fractions: an hour must not become 59 minutes.
        exact = np.rint(days * 86_400) * 1e6 if form == EXCEL else values * (1e6 / COUNTS[form])
        ticks = np.where(is_empty, 0, np.rint(exact)).astype(np.int64)
        return array(ticks, timestamp("us", None if form == EXCEL else "UTC"), mask=is_empty), is_wrong
    cells, directives = texts, form
    if form == ISO:
        # Dates alone and times without seconds are completed, so that one column can mix them.
        cells = compute.if_else(compute.match_substring_regex(texts, _ISO_TEXT), texts, None)
        cells = compute.replace_substring_regex(cells, r"^(.{10})$", r"\1 00:00")
        cells = compute.replace_substring_regex(cells, r"^(.{10})[T ](\d\d:\d\d)([^:.]*|[+-]\d\d:\d\d)$", r"\1 \2:00\3")
        cells = compute.replace_substring_regex(cells, r"^(.{10})T", r"\1 ")
        zoned = compute.sum(compute.match_substring_regex(cells, r"(Z|[+-]\d\d(:?\d\d)?)$")).as_py() or 0
        directives = "%Y-%m-%d %H:%M:%S.%f" + ("%z" if 0 < len(cells) - cells.null_count <= 2 * zoned else "")
    unit, fractions = "us", None
    if "%f" in directives:
        # pyarrow's strptime does not support fractions of seconds.
        digits = compute.fill_null(compute.struct_field(compute.extract_regex(cells, r"\.(?P<f>\d{1,9})"), "f"), "")
        unit = "ns" if (compute.max(compute.utf8_length(digits)).as_py() or 0) > 6 else "us"
        nanoseconds = compute.cast(compute.utf8_rpad(digits, 9, "0"), "int64")
        fractions = compute.cast(nanoseconds, "duration[ns]").cast(f"duration[{unit}]", safe=False)
        cells = compute.replace_substring_regex(cells, r"\.\d{1,9}", "", max_replacements=1)
    if "%z" in directives:
        cells = compute.replace_substring_regex(cells, "(Z|UTC|GMT)$", "+0000")
        cells = compute.replace_substring_regex(cells, r"([+-]\d\d):?(\d\d)?$", r"\1\2")
        cells = compute.replace_substring_regex(cells, r"([+-]\d\d)$", r"\100")
    times = compute.strptime(cells, directives.replace(".%f", ""), unit, error_is_null=True)
    times = times if fractions is None else compute.add(times, fractions)
    if has_clock_alone(form):
        times = compute.add(times, scalar(_CLOCK_DAYS * _DAY_MICROSECONDS, "duration[us]"))
    # A day beyond the end of a month becomes one of the first three of the next; only these texts are parsed again.
    doubtful = compute.or_(compute.less(compute.year(times), 1000), compute.less_equal(compute.day(times), 3))
    doubtful_texts = compute.unique(texts.filter(compute.fill_null(doubtful, False))).to_pylist()
    impossible = [text for text in doubtful_texts if not is_time(text, form)]
    is_time_text = compute.and_(times.is_valid(), compute.invert(compute.is_in(texts, array(impossible, texts.type))))
    is_wrong = compute.and_(texts.is_valid(), compute.invert(is_time_text)).to_numpy(zero_copy_only=False)
    if re.search("%[yDxcg]", form.replace("%%", "")):
        _check_not_future(texts, times, name, source)
    return compute.if_else(is_time_text, times, None), np.asarray(is_wrong, np.bool_)


def _check_not_future(texts: pyarrow.ChunkedArray, times: Any, name: str, source: Source) -> None:
    """Refuse years of two digits that are later than this year, since 40 may be 1940; raises DataError."""
    from pyarrow import compute

    row = compute.index(compute.fill_null(compute.greater(compute.year(times), date.today().year), False), True).as_py()
    if row >= 0:
        raise DataError(
            f'column "{name}" of {source.path} has years of two digits that can be of two centuries: '
            f"{source.name_row(row)} has `{texts[row]}`",
            "years of four digits",
            "write the years with four digits",
            key=source.key,
        )
