"""Spellings of names and classes: what nobody can see makes no difference, and what few would mean is listed."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

INVISIBLE = "[\u00ad\u200b\u2060\ufeff]|^[\u200c\u200d]+|[\u200c\u200d]+$"
"""Characters that nothing shows. Joiners within a word belong to its spelling in some languages."""
WHOLE = r"^([-+]?(?:0|[1-9]\d*))\.0+$"
"""A whole number as spreadsheets and pandas write it in a column with gaps: 12.0."""
TRUTH = r"^(?i:true|false)$"
"""A truth value as text: programs write true, True and TRUE."""
FRACTION = r"^[-+]?\d*\.\d*[1-9]\d*$"
_INVISIBLE, _WHOLE = re.compile(INVISIBLE), re.compile(WHOLE)
_ACCENTS = re.compile("[\u0300-\u036f]")
_BETWEEN = re.compile(r"(?<=\w)[-_\s]+(?=\w)")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)")


def plain(text: str) -> str:
    """The text in Unicode's composed form (NFC), without characters that nothing shows."""
    return text if text.isascii() else _INVISIBLE.sub("", unicodedata.normalize("NFC", text))


def code(text: str) -> str:
    """A plain text without the `.0` of a whole number, and truth values in small letters: by it spellings of one category
    are found.
    """
    return text.lower() if text.lower() in ("true", "false") else _WHOLE.sub(r"\1", plain(text))


def alike(names: Iterable[str]) -> list[str]:
    """Names that probably mean the same, such as `Leak/leak`: they differ in case, accents, width, spaces, hyphens, or
    as 1 and 01 do.
    """
    spellings = defaultdict(list)
    for name in names:
        spellings[_comparable(name)].append(name)
    return ["/".join(sorted(same)) for same in spellings.values() if len(same) > 1]


def _comparable(name: str) -> str:
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", plain(name))).strip()
    if _NUMBER.fullmatch(bare):
        return f"{float(bare):.15g}"
    return _BETWEEN.sub(" ", bare.casefold()).rstrip(".")
