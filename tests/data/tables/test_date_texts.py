"""Dates as people write them are refused as categories, and the message names their form."""

from __future__ import annotations

from datetime import datetime

import pyarrow
import pytest

from drivetrain.data.tables import column_roles, text_column
from drivetrain.errors import DataError
from tests.messages import says


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
        (["2025-09-13", "unknown", *(f"2025-09-{day}" for day in range(14, 28))], "%Y-%m-%d"),
        (["13/14/2025", "14/13/2025"], None),
        (["1.2.3", "red"], None),
        (["10.0.0.1", "10.0.0.2"], None),
        (["13.09.2025"], None),
        ([], None),
    ],
)
def test_the_form_of_dates(texts: list[str], form: str | None) -> None:
    assert text_column.guess_date_format(texts) == form
    if form and " or " not in form and "unknown" not in texts:
        assert all(datetime.strptime(text, form) for text in texts)


def test_a_column_of_dates_is_no_category() -> None:
    column = pyarrow.chunked_array([[f"{day:02}.09.2025" for day in range(1, 29)] * 4])
    with pytest.raises(DataError) as refused:
        column_roles._check_text(column, "Datum", "teile.csv")
    text = str(refused.value)
    assert says(text, "column-dates-text", "Datum", "teile.csv", "01.09.2025")
    assert "data.dates: {Datum: [year, month, weekday]} with data.date_format: '%d.%m.%Y'" in text
