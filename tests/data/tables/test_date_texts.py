"""Times as people write them: their form is recognized, read, and refused as categories."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow
import pytest

from drivetrain.data.formats import times
from drivetrain.data.source import Source
from drivetrain.data.tables import column_roles
from drivetrain.errors import DataError
from tests.messages import saying, says


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        (["13.09.2025", "1.2.2024"], "%d.%m.%Y"),
        (["01.02.2024", "03.04.2024"], "%d.%m.%Y"),
        (["13/09/2025", "01/02/2024"], "%d/%m/%Y"),
        (["09/13/2025", "01/02/2024"], "%m/%d/%Y"),
        (["09/10/2025", "01/02/2024"], "%d/%m/%Y or %m/%d/%Y"),
        (["13.09.25 08:30", "14.09.25 17:05"], "%d.%m.%y %H:%M"),
        (["2025/09/13 08:30:00", "2025/09/14 08:30:00"], "%Y/%m/%d %H:%M:%S"),
        (["2025-09-13", "unknown", *(f"2025-09-{day}" for day in range(14, 28))], times.ISO),
        (["2024-05-31 08:30:00+02", "2024-06-01T08:30Z"], times.ISO),
        (["2012/01/01", "2012/12/31"], "%Y/%m/%d"),
        (["2010/01/01 00:00", "2010/01/01 01:00"], "%Y/%m/%d %H:%M"),
        (["2010/01/01 00:00:00.250", "2010/01/01 01:00:00.5"], "%Y/%m/%d %H:%M:%S.%f"),
        (["2010/01/01 00:00 +0200", "2010/01/01 01:00 +0100"], "%Y/%m/%d %H:%M %z"),
        (["Jan 1 2000", "Feb 12 2001"], "%b %d %Y"),
        (["January 1, 2000", "March 12, 2001"], "%B %d, %Y"),
        (["1-Jan-2000", "12-Feb-2001"], "%d-%b-%Y"),
        (["Jan 2000", "Feb 2000"], "%b %Y"),
        (["Mon, 03 Jan 2000 10:00:00 GMT", "Tue, 04 Jan 2000 11:00:00 GMT"], "%a, %d %b %Y %H:%M:%S %z"),
        (["02/11/2024 04:18 AM", "02/13/2024 11:00 PM"], "%m/%d/%Y %I:%M %p"),
        (["2024-02", "2024-03"], "%Y-%m"),
        (["04:18", "4:30"], "%H:%M"),
        (["0:02:00", "23:59:59"], "%H:%M:%S"),
        (["19580329", "20240211"], "%Y%m%d"),
        (["202402110830", "202402110900"], "%Y%m%d%H%M"),
        (["Sep-20", "Oct-20"], "%b-%y"),
        (["1-Jan-99", "2-Feb-98"], "%d-%b-%y"),
        (["01.02.13", "1.2.14"], "%d.%m.%y"),
        (["2000-12", "2001-12"], "%Y-%m"),
        (["45333.179167", "45334"], None),
        (["2019", "2020"], None),
        (["05:20", "59:10", "61:00"], None),
        (["1.2.3", "2.0.14", "2.1.0"], None),
        (["2024-W03", "2024-W04"], None),
        (["12 Main 2000", "14 Main 2001"], None),
        (["555-12-1234", "123-45-6789"], None),
        (["13/14/2025", "14/13/2025"], None),
        (["1.2.3", "red"], None),
        (["1.2.13", "1.2.14", "13.1.10"], None),
        (["2000-01", "2001-02", "2011-12", "1999-00"], None),
        (["01:02.345", "01:03.111"], None),
        (["20-Sep", "21-Sep"], None),
        (["Jan", "Feb", "May"], None),
        (["2020-01-01 24:00", "2020-01-02 24:00"], None),
        (["2020-13-01", "2020-01-32"], None),
        (["10.0.0.1", "10.0.0.2"], None),
        (["13.09.2025"], None),
        ([], None),
    ],
)
def test_the_form_of_dates(texts: list[str], form: str | None) -> None:
    assert times.find_form(texts) == form
    if form and " or " not in form:
        assert all(times.is_time(text, form) for text in texts if text != "unknown")
        found = times.read(pyarrow.chunked_array([texts]), "when", Source(Path("a.csv"), "data.train"))
        assert found.values.null_count == found.is_wrong.sum() == texts.count("unknown")


@pytest.mark.parametrize(
    ("first", "form"),
    [
        ("1700000000", "seconds"),
        ("1700000000.5", "seconds"),
        ("1700000000000", "milliseconds"),
        ("1700000000000000000", "nanoseconds"),
    ],
)
def test_only_names_and_keys_make_times_of_numbers(first: str, form: str) -> None:
    """Populations, revenues and ids are as large as seconds since 1970, and often sorted, too."""
    cells = [first, first.replace("1700", "1701")]
    for name in ("timestamp", "created_at", "createdAt", "time", "event time", "time_ms", "ts", "epoch", "date", "T"):
        assert times.find_form(cells, name) == form
    for name in ("", "population", "revenue", "id", "lifetime_value", "rate", "data", "t_revenue", "format"):
        assert times.find_form(cells, name) is None
        assert times.find_form(cells, name, declared=True) == form


INSTANTS = [datetime(2024, 3, 9, 23, 30, tzinfo=UTC) + timedelta(hours=37 * n) for n in range(12)]
FORMS: dict[str, Callable[[datetime], str]] = {
    **{
        form: partial(lambda form, time: time.strftime(form), form)
        for form in (
            "%d.%m.%Y %H:%M",
            "%m/%d/%Y %I:%M %p",
            "%b %d %Y %H:%M:%S",
            "%d %B %Y %H:%M",
            "%Y%m%d%H%M",
            "%Y/%m/%d %H:%M:%S.%f",
            "%a, %d %b %Y %H:%M:%S %z",
            "%Y-%m-%dT%H:%M:%SZ",
            "%Y-%m-%d %H:%M",
        )
    },
    "seconds": lambda time: f"{time.timestamp():.0f}",
    "milliseconds": lambda time: f"{time.timestamp() * 1000:.0f}",
    "nanoseconds": lambda time: f"{time.timestamp() * 10**6:.0f}000",
    "excel": lambda time: f"{(time.replace(tzinfo=None) - datetime(1899, 12, 30)).total_seconds() / 86400:.6f}",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_times_gives_the_same_times(form: str) -> None:
    """As text and as numbers, the cells are the times that they were written from."""
    cells = [FORMS[form](time) for time in INSTANTS]
    columns = [pyarrow.chunked_array([cells])]
    if form in (*times.COUNTS, times.EXCEL, "%Y%m%d%H%M"):
        columns.append(pyarrow.chunked_array([[float(cell) if "." in cell else int(cell) for cell in cells]]))
    for column in columns:
        column_times = times.read(column, "when", Source(Path("a.csv"), "data.train"))
        assert [time.replace(tzinfo=None) for time in column_times.values.to_pylist()] == [
            time.replace(tzinfo=None) for time in INSTANTS
        ]


@pytest.mark.parametrize("form", ["%d.%m.%y", "%m/%d/%y"])
def test_years_of_two_digits_that_may_be_of_the_last_century_are_refused(form: str) -> None:
    days = [date(2001, 1, 13), date(1943, 4, 14)]
    column = pyarrow.chunked_array([[day.strftime(form) for day in days]])
    with pytest.raises(DataError, check=saying("dates-two-centuries", "when", "a.csv")):
        times.read(column, "when", Source(Path("a.csv"), "data.train"), form)
    assert (
        times.read(column.slice(0, 1), "when", Source(Path("a.csv"), "data.train"), form).values[0].as_py().date()
        == days[0]
    )


def test_a_column_of_dates_is_no_category() -> None:
    column = pyarrow.chunked_array([[f"{day:02}.09.2025" for day in range(1, 29)] * 4])
    with pytest.raises(DataError) as refused:
        column_roles._check_text(column, "Datum", "teile.csv")
    text = str(refused.value)
    assert says(text, "column-date-text", "Datum", "teile.csv", "01.09.2025")
    assert "data.dates: {Datum: [year, month, weekday]}" in text
