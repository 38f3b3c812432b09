"""`drivetrain evaluate --explain`: an explanation of a model, stored in the run folder and shown in the report.

Tables and series have the importance of each column, pictures have heat maps over the worst mistakes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.errors import SpecError
from drivetrain.job.formatting import format_metric, printable
from drivetrain.system.console import say_aside
from drivetrain.system.run_files import EXPLANATION_FILE, RunFiles

if TYPE_CHECKING:
    from drivetrain.inference.validation_samples import ValidationSamples
    from drivetrain.models.saved_model import SavedModel

MAX_PRINTED = 8
"""Columns that are printed; the file has all."""


def check_explainable(trained: SavedModel, data: Path | None) -> None:
    """Check that a model can be explained.

    Raises:
        SpecError: if the task has no explanation, or the command names other data.
    """
    if data is not None:
        raise SpecError("--explain with --data", "the validation data of the run", "leave one out")
    kind = trained.preprocessing.get("kind")
    heads = trained.heads.values()
    if kind in ("table", "series") or (kind == "images" and all(head.kind == "classes" for head in heads)):
        return
    raise SpecError(
        f"--explain: {trained.folder} is a model for {trained.task}{' of labels' if kind == 'images' else ''}",
        "tables and series, of which each column is permuted; pictures of one class each, which get heat maps",
        "evaluate without --explain; the report lists its worst mistakes",
    )


def check_network(samples: ValidationSamples) -> None:
    """Check with one sample that a network can be explained, before all samples are evaluated.

    Raises:
        SpecError: if it cannot.
    """
    from drivetrain.inference import heat_maps

    if samples.data.preprocessing["kind"] == "images":
        heat_maps.compute_sample_map(samples, 0)


def explain(run: Path, samples: ValidationSamples, mistakes: list[int]) -> None:
    """Measure importance or draw heat maps, store the result in the run folder, and write its report again.

    `mistakes` are ids of the worst mistakes. Raises StorageError if the run folder cannot be written.
    """
    from drivetrain.inference import heat_maps, permutation_importance
    from drivetrain.report import write as reports

    if samples.data.preprocessing["kind"] == "images":
        rows = list(heat_maps.explain_samples(samples, mistakes))
        empty_count = sum(row["empty"] for row in rows)
        content: dict[str, object] = {"maps": rows, "empty_maps": empty_count}
        say_aside(f"explain: heat maps of {len(rows)} samples, {len(mistakes)} of them the worst mistakes")
        if empty_count:
            say_aside(f"explain: {empty_count} of the maps are empty: {heat_maps.EMPTY_MAP_REASON}")
    else:
        say_aside(f"explain: permutes each column, for about {permutation_importance.MAX_SECONDS:.0f} s at most")
        result = permutation_importance.measure_importance(samples)
        content = {"importance": result}
        for row in result["columns"][:MAX_PRINTED]:
            change = f"{format_metric(row['mean'])} ± {format_metric(row['spread'])}"
            say_aside(f"explain: without {printable(row['column'])}, {samples.metric} is worse by {change}")
        if result["unmeasured"]:
            say_aside(f"explain: there was no time for {result['unmeasured']:,} columns")
        say_aside(
            f"explain: {result['rows']:,} of {result['of']:,} rows, {result['repetitions']} permutations of each column"
        )
    RunFiles(run).write_json(EXPLANATION_FILE, content)
    reports.write(run)
    say_aside(f"explain: in {run}/report.html")
