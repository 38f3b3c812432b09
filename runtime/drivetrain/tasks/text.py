"""Texts: columns of a table, as tokens."""

from drivetrain.job.text import TextJob
from drivetrain.job.workload import Workload
from drivetrain.tasks.modality import Lazy, Modality

MODALITY = Modality(
    kind="texts",
    job=TextJob,
    tasks={"text-classification": TextJob},
    expected=Workload(ragged=True),
    reader=Lazy("data.text.text_data.TextReader"),
    restore=Lazy("data.text.text_data.restore"),
    draft=Lazy("data.survey.look.draft_texts"),
    build_network=Lazy("models.build.build_text_network"),
    draw_inputs=Lazy("models.dummy_inputs.draw_texts"),
    make_features=Lazy("baselines.sample_features.TextFeatures"),
    taken_from_earlier="vocabulary and tokenizer",
    has_pretrained=True,
    notes_classes=True,
)
