"""Cleans the spelling of names and categories, and finds names that probably mean the same."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

INVISIBLE_MARKS = "[\u00ad\u200b\u2060\ufeff]|^[\u200c\u200d]+|[\u200c\u200d]+$"
"""Characters that nothing shows. Joiners within a word belong to its spelling in some languages."""
WHOLE_NUMBER = r"^([-+]?(?:0|[1-9]\d*))\.0+$"
"""A whole number as spreadsheets and pandas write it in a column with gaps: 12.0."""
TRUTH_VALUE = r"^(?i:true|false)$"
"""A truth value as text: programs write true, True and TRUE."""
FRACTION = r"^[-+]?\d*\.\d*[1-9]\d*$"
_INVISIBLE_MARKS, _WHOLE_NUMBER = re.compile(INVISIBLE_MARKS), re.compile(WHOLE_NUMBER)
_ACCENTS = re.compile("[\u0300-\u036f]")
_WORD_SEPARATOR = re.compile(r"(?<=\w)[-_\s]+(?=\w)")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)")


def clean_text(text: str) -> str:
    """Return the text in Unicode's composed form (NFC), without invisible characters."""
    return text if text.isascii() else _INVISIBLE_MARKS.sub("", unicodedata.normalize("NFC", text))


def clean_category(text: str) -> str:
    """Return the clean text of a category, without the `.0` of a whole number, and with truth values in small letters."""
    return text.lower() if text.lower() in ("true", "false") else _WHOLE_NUMBER.sub(r"\1", clean_text(text))


def find_similar_names(names: Iterable[str]) -> list[str]:
    """Find names that differ only in case, accents, width, spaces, hyphens or leading zeros, such as `Leak/leak`."""
    spellings = defaultdict(list)
    for name in names:
        spellings[_compute_similarity_key(name)].append(name)
    return ["/".join(sorted(same)) for same in spellings.values() if len(same) > 1]


def _compute_similarity_key(name: str) -> str:
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", clean_text(name))).strip()
    if _NUMBER.fullmatch(bare):
        return f"{float(bare):.15g}"
    return _WORD_SEPARATOR.sub(" ", bare.casefold()).rstrip(".")
