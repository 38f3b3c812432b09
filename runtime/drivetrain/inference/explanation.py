"""`drivetrain evaluate --explain`: an explanation of a model, stored in the run folder and shown in the report.

Tables and series have the importance of each column, pictures have heat maps over the worst mistakes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.errors import SpecError
from drivetrain.system.console import say_aside
from drivetrain.system.run_files import EXPLANATION_FILE, RunFiles
from drivetrain.tasks import find_stored_modality

if TYPE_CHECKING:
    from drivetrain.inference.validation_samples import ValidationSamples
    from drivetrain.models.saved_model import SavedModel


def check_explainable(trained: SavedModel, data: Path | None) -> None:
    """Check that a model can be explained.

    Raises:
        SpecError: if the task has no explanation, or the command names other data.
    """
    if data is not None:
        raise SpecError("--explain with --data", "the validation data of the run", "leave one out")
    explained = find_stored_modality(trained.preprocessing).explained
    if all(head.kind in explained for head in trained.heads.values()):
        return
    raise SpecError(
        f"--explain: {trained.folder} is a model for {trained.task}{' of labels' if explained else ''}",
        "tables and series, of which each column is permuted; pictures of one class each, which get heat maps",
        "evaluate without --explain; the report lists its worst mistakes",
    )


def explain(run: Path, samples: ValidationSamples, mistakes: list[int]) -> None:
    """Measure importance or draw heat maps, store the result in the run folder, and write its report again.

    `mistakes` are ids of the worst mistakes. Raises StorageError if the run folder cannot be written.
    """
    from drivetrain.report import write as reports

    content = find_stored_modality(samples.data.preprocessing).explain(samples, mistakes)
    RunFiles(run).write_json(EXPLANATION_FILE, content)
    reports.write(run)
    say_aside(f"explain: in {run}/report.html")
