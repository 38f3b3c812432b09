"""Recognizes, by name, classes that a mirrored image would show wrongly: left and right, digits, letters, arrows."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from drivetrain.data.notes import list_names
from drivetrain.job.data import ImageAugment

_SIDES = {
    *("left", "izquierda", "izquierdo", "izq", "gauche", "esquerda", "esquerdo", "sinistra", "sinistro", "vanster"),
    *("venstre", "derecha", "droite", "rechts", "direita", "destra", "hoger", "hoyre", "hojre"),
    *("лево", "левыи", "левая", "левое", "налево", "влево", "слева", "направо", "вправо", "справа", "вліво", "ліворуч"),
    *("mirrored", "flipped", "clockwise", "counterclockwise", "anticlockwise", "ccw", "backslash"),
}
"""Words, in plain letters, that show that mirroring changes the label."""
_PAIRS = (
    *(("right", "left"), ("l", "r"), ("lt", "rt"), ("links", "rechts"), ("sx", "dx"), ("os", "od"), ("sol", "sag")),
    *(("lewo", "prawo"), ("lewy", "prawy"), ("lewa", "prawa"), ("levo", "desno"), ("vlevo", "vpravo"), ("bal", "jobb")),
    *(("vasen", "oikea"), ("stanga", "dreapta"), ("kiri", "kanan"), ("trai", "phai"), ("linker", "rechter")),
    *(
        ("east", "west"),
        ("ost", "west"),
        ("este", "oeste"),
        ("est", "ouest"),
        ("est", "ovest"),
        ("ne", "nw"),
        ("se", "sw"),
    ),
    *(("rising", "falling"), ("ascending", "descending"), ("increasing", "decreasing"), ("uphill", "downhill")),
)
"""Pairs of words that show it only if both occur among the names."""
_SIGNS = ("左", "右", "왼", "오른", "يسار", "يمين", "बाए", "बाएं", "दाए", "दाएं")
"""Words in scripts without blanks between words, and words with vowel signs."""
_ARROWS = ("arrow", "flecha", "pfeil", "fleche", "freccia", "chevron", "стрелк", "seta ")
_LABELLED = re.compile(
    r"(?:digit|number|num|letter|char|character|cifra|numero|letra|chiffre|lettre|ziffer|zahl|buchstabe)s?[ _-]?(\w|\d+)"
)
_DIGITS = {
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("cero", "uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve"),
    *("null", "eins", "zwei", "drei", "vier", "funf", "sechs", "sieben", "acht", "neun"),
    *("un", "deux", "trois", "quatre", "cinq", "sept", "huit", "neuf"),
}
_RIGHT_OR_WRONG = {"wrong", "incorrect", "false", "bad", "error"}


def find_mirrored(names: Sequence[str]) -> str:
    """Describe classes whose labels a mirrored image may contradict, such as `left and right`; empty for none."""
    plain_names = [_to_plain_letters(name) for name in names]
    words = {word for name in plain_names for word in re.findall(r"[^\W\d_]+", name)}
    sides = [word for word in sorted(words) if word in _SIDES or _has_left(word)]
    sides += [word for pair in _PAIRS if words.issuperset(pair) for word in pair]
    sides += ["right"] if "right" in words and not words & _RIGHT_OR_WRONG else []
    sides += [name for name in names if any(sign in unicodedata.normalize("NFC", name) for sign in _SIGNS)]
    sides += [name for name, plain in zip(names, plain_names, strict=True) if _is_arrow(plain)]
    if sides:
        return list_names(list(dict.fromkeys(sides)), 4)
    written = [name for name, plain in zip(names, plain_names, strict=True) if _is_written(plain)]
    return f"digits, numbers or single letters ({list_names(written, 4)})" if len(written) > 1 else ""


def note_changes(augment: ImageAugment, names: Sequence[str], *, are_numbers: bool) -> Iterator[str]:
    """Yield notes on requested augmentation that may contradict the labels.

    Args:
        augment: the augmentation of the job.
        names: classes, labels, or columns of numbers.
        are_numbers: whether numbers are predicted; they stay unchanged when an image is mirrored or moved.
    """
    if are_numbers:
        moving = ("flip", "crop_padding", "resized_crop", "randaugment")
        if keys := [f"data.augment.{key}" for key in moving if getattr(augment, key)]:
            yield (
                f"{' and '.join(keys)}: images are mirrored or moved, and {list_names(list(names), 4)} stays as it is: "
                f"remove {'it' if len(keys) == 1 else 'them'} if that is a position, a direction or a size in the image"
            )
    elif augment.flip and (mirrored := find_mirrored(names)):
        yield (
            f"data.augment.flip: mirrored images keep their label, and there are classes such as {mirrored}: remove it, "
            "unless a mirrored image is still one of its class"
        )


def _to_plain_letters(name: str) -> str:
    """Convert a name to small letters without accents, with a blank before a word that begins with a capital."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    decomposed = unicodedata.normalize("NFKD", spaced.casefold().replace("ø", "o").replace("ğ", "g"))
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).strip()


def _has_left(word: str) -> bool:
    """Return whether a word is `left` joined with another word, as in turnleft, but not leftovers or cleft."""
    return (word.startswith("left") or word.endswith("left")) and not word.startswith(("leftover", "cleft"))


def _is_arrow(name: str) -> bool:
    return name.startswith(_ARROWS) or any("\u2190" <= letter <= "\u21ff" or letter in "<>" for letter in name)


def _is_written(name: str) -> bool:
    """Return whether a name is a digit, a number or a single letter, also in words or after a word such as digit."""
    return len(name) == 1 or name.isdecimal() or name in _DIGITS or _LABELLED.fullmatch(name) is not None
