"""What the program says, as the tests expect it: the sentences are in golden/messages.json, the figures and names in the tests.

A test names a message by its key, `assert says(output, "rows-sorted", "a.csv")`, so a message can be worded anew without a
change of any test. `make messages` runs tests with `DRIVETRAIN_REWRITE_MESSAGES` set: where a message is missing, the
likeliest part of the text goes into the file. It must hold all values of the test, and the same names and options as before.
"""

from __future__ import annotations

import difflib
import fcntl
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from tests.paths import TESTS

FILE = TESTS / "golden" / "messages.json"
REWRITE = "DRIVETRAIN_REWRITE_MESSAGES"
LEAST_LIKENESS = 0.4
"""From 0 to 1: below it, a text says something else, and a person decides."""
NAME = re.compile(r"\S*[\w-][_./\d][\w-]\S*|--\S+|\S*\d\S*")
"""Options, paths, keys, numbers: what a sentence names rather than says."""
MARKS = " .,:;()[]\"'`"
BOUNDARY = re.compile(r"(?<=[:;,.!?]) |(?= \()|(?<=\)) |\n")

Texts = str | Iterable[str]
"""One text, or several, of which one must fit."""


@cache
def read_messages() -> dict[str, str]:
    """The sentence of each key, with {0}, {1} where the values of the tests go."""
    messages: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
    return messages


def get_template(key: str) -> str:
    assert key in read_messages(), f"{key} is not in {FILE.relative_to(TESTS)}: write the sentence there"
    return read_messages()[key]


def fill(template: str, values: tuple[object, ...]) -> str:
    used = set(re.findall(r"\{(\d)\}", template))
    assert used == {str(number) for number in range(len(values))}, f"{len(values)} values for {template!r}"
    return re.sub(r"\{(\d)\}", lambda found: str(values[int(found[1])]), template)


class Message(str):
    """A sentence that remembers its key and values."""

    key: str
    values: tuple[object, ...]


def get_message(key: str, *values: object) -> Message:
    """The sentence of `key` with `values`, for `says_each` and for comparisons that rewrite nothing."""
    message = Message(fill(get_template(key), values))
    message.key, message.values = key, values
    return message


def says(texts: Texts, key: str, *values: object) -> bool:
    """Whether the message is in a text; raises AssertionError with both if not, as the next three do."""
    __tracebackhide__ = True
    return expect(texts, key, values, lambda text, sentence: sentence in text)


def says_only(texts: Texts | None, key: str, *values: object) -> bool:
    """Whether a text is the message."""
    __tracebackhide__ = True
    return expect(texts, key, values, lambda text, sentence: sentence == text)


def begins_with(texts: Texts, key: str, *values: object) -> bool:
    """Whether a text begins with the message."""
    __tracebackhide__ = True
    return expect(texts, key, values, str.startswith)


def ends_with(texts: Texts, key: str, *values: object) -> bool:
    """Whether a text ends with the message."""
    __tracebackhide__ = True
    return expect(texts, key, values, str.endswith)


def says_each(objects: Iterable[object], expected: Sequence[object]) -> bool:
    """Whether these are the expected objects, some of which are messages, in this order and no others."""
    __tracebackhide__ = True
    objects = list(objects)
    pairs = zip(objects, expected, strict=False)
    same = [
        says_only(str(one), other.key, *other.values) if isinstance(other, Message) else one == other
        for one, other in pairs
    ]
    return all(same) and len(objects) == len(expected)


def omits(texts: Texts, key: str, *values: object) -> bool:
    """Whether the message is in no text."""
    return not any(get_message(key, *values) in text for text in as_list(texts))


def saying(key: str, *values: object) -> Callable[[BaseException], bool]:
    """For `pytest.raises(..., check=saying(key))`: whether the message is in that of the error."""
    return lambda error: says(str(error), key, *values)


def as_list(texts: Texts | None) -> list[str]:
    return [] if texts is None else [texts] if isinstance(texts, str) else list(texts)


def expect(texts: Texts | None, key: str, values: tuple[object, ...], fits: Callable[[str, str], bool]) -> bool:
    __tracebackhide__ = True
    texts, template = as_list(texts), get_template(key)
    sentence = fill(template, values)
    if any(fits(text, sentence) for text in texts):
        return True
    parts = (part for text in texts for part in list_parts(text, sentence) if fits(text, part))
    nearest = find_nearest(parts, template, tuple(str(value) for value in values))
    if nearest and os.environ.get(REWRITE):
        return write_message(key, template, nearest)
    advice = f"\n  nearest:  {nearest!r}\n  do:       if it says the same, make messages ARGS=TEST" if nearest else ""
    text_lines = "\n".join(texts)
    raise AssertionError(f"{key} is not in the text\n  expected: {sentence!r}{advice}\n  text:\n{text_lines}")


def list_parts(text: str, sentence: str) -> Iterator[str]:
    """The parts of `text` that may have become of `sentence`: of a line, or of as many as it has, what is between
    two marks or names.
    """
    if len(text) < 4 * len(sentence) + 100:
        yield text
    lines, height = text.split("\n"), sentence.count("\n") + 1
    sentence_words = set(sentence.split())
    windows = ["\n".join(lines[first : first + height]) for first in range(len(lines) - height + 1)]
    # A log may have thousands of lines.
    for window in sorted(windows, key=lambda window: -len(sentence_words & set(window.split())))[:20]:
        breaks = {
            position for pattern in (BOUNDARY, NAME) for match in pattern.finditer(window) for position in match.span()
        }
        for start, end in itertools.combinations(sorted({0, *breaks, len(window)})[:40], 2):
            yield window[start:end]
            yield window[start:end].strip(MARKS)
        yield window


def find_nearest(parts: Iterable[str], template: str, values: tuple[str, ...]) -> str | None:
    """The part most like the template, with {0}, {1} for the values, if it has all of them and names the same things."""
    best, likeness, template_words = None, LEAST_LIKENESS, set(template.split())
    for part in dict.fromkeys(parts):
        other = insert_places(part, values)
        if other is None or list_names(other) != list_names(template):
            continue
        # A part that lacks words of the sentence would say less than before, so words count as much as letters.
        share = len(template_words & set(other.split())) / len(template_words)
        matcher = difflib.SequenceMatcher(None, template, other, autojunk=False)
        if (matcher.quick_ratio() + share) / 2 > likeness and (matcher.ratio() + share) / 2 > likeness:
            best, likeness = other, (matcher.ratio() + share) / 2
    return best


def list_names(sentence: str) -> set[str]:
    return {name.strip(MARKS) for name in NAME.findall(sentence)}


def insert_places(part: str, values: tuple[str, ...]) -> str | None:
    """`part` with {0}, {1} in place of the values; None without one of them. Of equal values each stands once."""
    order = sorted(range(len(values)), key=lambda number: (-len(values[number]), number))
    for number, following in ((number, order[index + 1 :]) for index, number in enumerate(order)):
        once = any(values[other] == values[number] for other in following)
        pattern = rf"(?<![\w.{{]){re.escape(values[number])}(?!\.?\w|\}})"
        part, count = re.subn(pattern, f"{{{number}}}", part, count=int(once))
        if not count:
            return None
    return part


def write_message(key: str, before: str, after: str) -> bool:
    """Replace a message in the file, unless another test has: workers of xdist and processes of tests write in turn."""
    with FILE.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        messages = json.load(file)
        assert messages[key] in (before, after), f"{key} stands for two messages: give one of them a key of its own"
        messages[key] = after
        file.seek(0)
        file.write(format_messages(messages))
        file.truncate()
    return True


def format_messages(messages: dict[str, str]) -> str:
    return json.dumps(messages, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def list_used_keys() -> set[str]:
    """Every string in quotes in a file that imports from here; keys look like nothing else there."""
    sources = (path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py"))
    return {
        key for source in sources if "tests.messages import" in source for key in re.findall(r'"([a-z0-9-]+)"', source)
    }


if __name__ == "__main__":
    keys = list_used_keys()
    FILE.write_text(
        format_messages({key: text for key, text in read_messages().items() if key in keys}), encoding="utf-8"
    )
