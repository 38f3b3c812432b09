"""Job files with one thing broken."""

from __future__ import annotations

import random
import re

SPLINTERS = (
    b"null",
    b"true",
    b"yes",
    b"-1",
    b"1e999",
    b".nan",
    b"[]",
    b"{}",
    b"[1, 2]",
    b"{a: 1}",
    b"''",
    b"!!set {a}",
    b"&a [*a]",
    b"*m",
    b"<<: *m",
    b'"\\ud800"',
    b'"\\U00110000"',
    b"0x10",
    b"2:30",
    b"|\n  x",
    b"? a",
    b"%",
    b"@",
    b"---",
    b"...",
    b"\t",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"!<",
    b"%YAML 3",
    b"'",
    b'"',
    b"- ",
    b": ",
    b"9" * 120,
)


def break_spec(text: bytes, draw: random.Random) -> bytes:
    """The text with one to four changes: bytes gone, doubled or added, lines moved, values replaced."""
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(text) + 1)
        end = start + draw.randrange(12)
        lines = text.split(b"\n")
        word_matches = list(re.finditer(rb"[\w./*-]+", text))
        match draw.randrange(6):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + text[start:]
            case 2:
                text = text[:start] + draw.choice([*SPLINTERS, bytes([draw.randrange(256)])]) + text[start:]
            case 3:
                draw.shuffle(lines)
                text = b"\n".join(lines)
            case 4:
                lines.insert(draw.randrange(len(lines)), draw.choice(lines))
                text = b"\n".join(lines)
            case 5 if word_matches:
                word = draw.choice(word_matches)
                text = text[: word.start()] + draw.choice(SPLINTERS) + text[word.end() :]
    return text
