"""Names of classes, columns, files and heads are text on the page and in the Markdown, whatever they hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from drivetrain.report.blocks import Chart, Details, Headline, Section, Table, Text, Tile
from drivetrain.report.confusion import Confusion
from drivetrain.report.log_series import Series
from drivetrain.report.markdown import render_markdown
from drivetrain.report.page import render_page
from drivetrain.report.write import write
from drivetrain.system.printable import printable
from tests.paths import PACKAGE
from tests.report_folder import change_json, confusion, make_run, write_rows
from tests.report_page import Page, read_page

NAMES = (
    "</style></svg><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}{# x",
    "<!-- x",
    "]]> --> </title></textarea>",
    "![x](http://a.example/x.png) [y](javascript:alert(1))",
    "https://a.example/ www.a.example <https://a.example/>",
    "| a | b |\n\n# c\n---\n```\n| d | e |",
    "# d",
    "> e",
    "1. f",
    "- g",
    "+ h",
    "===",
    "_i_ ~~j~~ *k* `l` $m$ &lt;b&gt; \\",
    "url(#a) b\u202ec",
)
PIXEL = "iVBORw0KGgo" + "A" * 40


def make_named_run(folder: Path, name: str) -> Path:
    """A run whose classes, columns, heads, files, metrics, events and notes have this name; the second class has another."""
    run = make_run(folder, classes=[name, "b"])
    other = json.loads(json.dumps(confusion(["a", name])))
    numbers = {"columns": [name], "pairs": [[[1.0], [2.0]], [[2.0], [1.0]]]}
    mistake = {"title": name, "truth": name, "answer": "b", "probability": 0.9, "picture": PIXEL}
    error = {"title": name, "truth": [1.0], "answer": [2.0], "column": 0}
    change_json(run / "result.json", lambda r: r["confusion"].update({name: other, f"{name} n": numbers}))
    change_json(run / "result.json", lambda r: r.update(data=[f"{name}: {name}"], model=name, stopped_because=name))
    change_json(run / "plan.json", lambda p: p.update(notes=[name]))
    change_json(run / "result.json", lambda r: r.update(mistakes={"": [mistake], f"{name} n": [error]}))
    columns = [{"column": name, "mean": 0.1, "spread": 0.01}]
    importance = {"metric": name, "value": 0.5, "rows": 3, "of": 3, "repetitions": 2, "columns": columns}
    (run / "explanation.json").write_text(json.dumps({"importance": importance, "maps": [mistake]}))
    write_rows(run / "events.jsonl", [{"time": name, "kind": name, "text": name}])
    rows = [{"step": s, "epoch": s, f"validation/{name}/f1": s / 10, f"{name}/loss": 1.0} for s in (1, 2, 3)]
    write_rows(run / "metrics.jsonl", rows)
    made_from = {"data": {name: name}, "code": {name: name}, "model": "m"}
    change_json(run / "state.json", lambda s: s.update(commits=[name], made_from=made_from))
    write(run)
    return run


def outline(markdown: str) -> list[str]:
    """The elements that a reader of Markdown makes of a text, without what they say."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    inner = [child.type for token in tokens for child in token.children or ()]
    return [token.type for token in tokens] + [kind for kind in inner if kind not in ("text", "text_special")]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_adds_no_element_to_a_report(tmp_path: Path, name: str) -> None:
    run = make_named_run(tmp_path / "a" / "digits-001", name)
    harmless_run = make_named_run(tmp_path / "b" / "digits-001", "h" * len(printable(name)))
    page, harmless = read_page(run), read_page(harmless_run)
    assert page.open == []
    assert page.order == harmless.order
    assert {"script", "iframe", "link"}.isdisjoint(page.tags)
    assert len(page.ids) == len(set(page.ids))
    assert all(load.startswith(("#", "data:image/png;base64,")) for load in page.loads)
    assert {load[1:] for load in page.loads if load.startswith("#")} <= set(page.ids)
    text = (run / "report.md").read_text(encoding="utf-8")
    kinds = outline(text)
    assert kinds == outline((harmless_run / "report.md").read_text(encoding="utf-8"))
    assert {"html_inline", "html_block", "link_open", "image"}.isdisjoint(kinds)
    assert not re.search(r"(?<!\\)(://|www\.)", text.partition("```yaml")[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is(name: str) -> None:
    """In every kind of block; of white space and changes of direction a browser and a terminal show less."""
    text_on_page = re.sub(r"\s+", " ", name).strip()
    series = Series(name)
    series.add(1.0, 2.0)
    blocks = (
        Text(name),
        Table((name,), ((name,),)),
        Details(name, name),
        Confusion(name, (name, "b"), ((1, 2), (3, 4))),
        Chart(name, name, (series,), (name, 1.0), ((name, 1.0),)),
    )
    headline = Headline(name, name, name, name, name, name, tiles=(Tile(name, name, name),), alerts=(name,))
    sections = [Section(name, blocks), Section(name, ())]
    page = Page(render_page(headline, sections))
    assert re.sub(r"\s+", " ", page.text).count(text_on_page) >= 22
    assert page.ids == ["section-1", "section-2"]
    tokens = MarkdownIt("commonmark").enable("table").parse(render_markdown(headline, sections))
    said = ["".join(c.content for c in token.children or ()) for token in tokens]
    assert sum(text_on_page in re.sub(r"\s+", " ", text) for text in said) >= 12


def test_nothing_makes_markup_but_the_template() -> None:
    """`|safe` and `Markup` would let a name of the data through."""
    template = (PACKAGE / "report/page.html").read_text(encoding="utf-8")
    assert not re.search(r"\|\s*safe|autoescape|<script|url\(|https?://", template)
    makers = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"\bMarkup\(|\|\s*safe\b", path.read_text())]
    assert makers == []
