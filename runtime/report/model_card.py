"""The model card of a finished run (model-card.md): what the model does, from what it was made, how good it is, and where that ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runtime.report.blocks import Section, Table, Text
from runtime.report.confusion import confusions
from runtime.report.formatting import number, shown
from runtime.report.labels import label_tables
from runtime.report.record import Record
from runtime.report.render.markdown import markdown
from runtime.report.sections import body, headline, tested_model
from runtime.report.sections.provenance import provenance_section
from runtime.report.summary import Summary

FILE = "model-card.md"


def model_card(record: Record, summary: Summary) -> str:
    """The card as Markdown; empty for a run that has not ended well."""
    if not record.provenance:
        return ""
    result = record.result
    found = [
        Section("model", "Model", (Table(("item", "value"), tuple(_facts(record, summary))),)),
        body.data_section(result.get("data")),
        tested_model.final_test_section(record, summary),
        *(body.confusion_section(each) for each in confusions(result.get("confusion"))),
        *(body.labels_section(each) for each in label_tables(result.get("confusion"))),
        Section("limits", "Limits", tuple(map(Text, _limits(record, summary)))),
        provenance_section(record),
    ]
    return markdown(headline.headline(record, summary), [section for section in found if section])


def _facts(record: Record, summary: Summary) -> Iterator[tuple[str, str]]:
    train = record.spec.get("train")
    train = train if isinstance(train, Mapping) else {}
    yield "task", shown(summary.task)
    if model := record.result.get("model"):
        yield "network", shown(model)
    if summary.parameters is not None:
        yield "parameters", f"{number(summary.parameters)}, of which {number(summary.trainable or 0)} were trained"
    for key in ("loss", "optimizer", "schedule"):
        given = train.get(key)
        if name := given.get("name") if isinstance(given, Mapping) else given:
            yield key, shown(name)
    if summary.epochs is not None and summary.steps is not None:
        yield "trained for", f"{number(summary.epochs)} epochs, {number(summary.steps)} steps"
    yield "use", f"drivetrain predict {record.name} INPUT"


def _limits(record: Record, summary: Summary) -> Iterator[str]:
    if summary.test:
        yield "The final test was made once, with data on which nothing was chosen. Other data can give other values."
    else:
        yield (
            "The values are those of the validation data, which also selected the weights, so they are a little too good. "
            "A final test (`data.test`) has not been made."
        )
    yield f"Measure it with data of the place where it will be used: `drivetrain evaluate {record.name} --data PATH`."
    yield "What the model must not be used for, and whom its mistakes can harm, only its makers know: add it here."
