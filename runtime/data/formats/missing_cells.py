"""Cells that stand for no value. Imports nothing, since `drivetrain validate` reads it, too."""

from __future__ import annotations

USUAL = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None")
"""What most programs write."""
MARKS = (
    *("?", "-", "--", "---", "\u2013", "\u2014", ".", "..", "na", "n.a.", "N.A.", "none", "NONE", "Null", "nil", "NAN"),
    *("<NA>", "NaT", "\\N", "(null)", "n/d", "N/D", "n.d.", "N.D.", "s/d", "S/D", "k.A.", "k. A."),
    # Spreadsheets write what went wrong, in their language.
    *("#N/D", "#NV", "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!", "#\u00a1DIV/0!", "#\u00a1VALOR!"),
    *("#VALOR!", "#\u00a1REF!", "#\u00a1NUM!", "#\u00a1NULO!", "#\u00bfNOMBRE?", "#WERT!", "#BEZUG!", "#ZAHL!"),
    *("#VALEUR!", "#VALORE!", "#NOME?", "#NOM?"),
)
"""What stands for no value among numbers, and is worth a note."""
NOTHING = (*USUAL, *MARKS)
"""Cells without a value in columns of numbers; in columns of text only an empty cell is one."""
