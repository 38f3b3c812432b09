"""Tells text in Windows-1250 or 1254 from text in Windows-1252 by the accented letters that a language has."""

from __future__ import annotations

from collections import Counter

ENOUGH = 0.95
"""Share of accented letters that are those of one language, from which on the text is taken for that language."""
_WESTERN = (
    *("áéíóúüñ", "àâæçéèêëîïôœùûüÿ", "äöüßé", "àèéìíîòóùú", "ãáâàçéêíõóôúü", "àçèéíïòóúüñ", "æøåéèóò", "åäöéüà"),
    *("áðéíóúýþæö", "éëïóöüèêáí", "äõöüšž", "éïèêñöçü"),
)
"""Spanish, French, German, Italian, Portuguese, Catalan, Danish and Norwegian, Swedish and Finnish, Icelandic, Dutch,
Estonian, English."""
_OTHERS = {
    "windows-1250": ("ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "âăîşţ", "čćđšž"),
    "windows-1254": ("çğ\u0131öşüâîû",),
}
"""Polish, Czech, Slovak, Hungarian, Romanian, Croatian and Slovene; Turkish."""


def is_other(text: bytes) -> bool:
    """Whether the letters are those of a language that Windows-1252 cannot write, and of none that it can."""
    if _best(text, "windows-1252", _WESTERN) >= ENOUGH:
        return False
    return any(_best(text, encoding, languages) >= ENOUGH for encoding, languages in _OTHERS.items())


def _best(text: bytes, encoding: str, languages: tuple[str, ...]) -> float:
    """The largest share of the accented letters that a language has."""
    letters = Counter(
        sign
        for sign in text.decode(encoding, "replace").replace("\u0130", "\u0131").lower()
        if sign > "\x7f" and sign.isalpha()
    )
    # What the encoding cannot read, or a sign in the midst of words, is no letter of any language.
    total = sum(letters.values()) or 1
    return max(sum(count for letter, count in letters.items() if letter in language) for language in languages) / total
