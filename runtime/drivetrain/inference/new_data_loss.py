"""The loss of a trained model on new data: its job's loss, without the values that need the training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from drivetrain.data.dataset import Head, Targets, mark_partial
from drivetrain.errors import SpecError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import read
from drivetrain.system.run_files import JOB_FILE
from drivetrain.training import losses


def build_objective(
    folders: Sequence[Path], heads: Mapping[str, Head], targets: Targets
) -> tuple[losses.Objective | None, str]:
    """Build the loss by the job.yaml in one of the folders, or None, and a note for the user, which may be empty."""
    spec = next((folder / JOB_FILE for folder in folders if (folder / JOB_FILE).is_file()), None)
    if spec is None:
        return None, "no loss is computed, since there is no job.yaml beside the model that names it"
    try:
        train = job_spec.check(read(spec.read_bytes(), str(spec))).train
    except (OSError, SpecError) as error:
        return None, f"no loss is computed, since {spec} cannot be read: {str(error).splitlines()[0]}"
    if getattr(train.loss, "name", "") == "own":
        return None, "no loss is computed, since it is code of the user's"
    weights = {name: head.class_weights or train.class_weights for name, head in heads.items()}
    balanced = [name for name, head in heads.items() if weights[name] == "balanced" and head.classes]
    # Balanced weights come from the training data, which is not here.
    weights |= dict.fromkeys(balanced, "none")
    weighted_heads = {name: replace(head, class_weights=weights[name]) for name, head in heads.items()}
    note = "the loss is computed without class weights: this model was stored without those of its training data"
    objective = losses.build_objective(train.loss, mark_partial(weighted_heads, [targets]), targets, "none")
    return objective, note if balanced else ""
