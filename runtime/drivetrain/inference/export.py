"""`drivetrain export`: a trained network as ONNX, compared with the original, and a JSON that describes it.

The ONNX file contains the network only: it takes preprocessed inputs and returns raw outputs, or probabilities. The JSON of the same name
describes the preprocessing and the meaning of the outputs.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.errors import CheckpointError, DataError, DeviceError, SpecError, StorageError
from drivetrain.inference import thread_limits
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.system import installation
from drivetrain.system.console import say, say_aside
from drivetrain.system.files import check_utf8, storage_error, write_json
from drivetrain.system.run_files import JOB_FILE, MISSING

if TYPE_CHECKING:
    from drivetrain.data.dataset import Head, Inputs, Preprocessing, Split
    from drivetrain.models.saved_model import SavedModel

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MAX_DIFFERENCE = 1e-4
"""Largest difference that counts as agreement."""
TRACED_SAMPLES, TESTED_SAMPLES = 3, (1, 5)
"""Samples in the export's example, and other batch sizes with which the file is tested."""


@dataclass(frozen=True)
class ExportRequest:
    """The options of `drivetrain export`."""

    run: Path
    output: Path | None = None
    """model.onnx in the run if None."""
    run_code: bool = False
    """Whether the code of a model folder outside of its run may be run."""
    probabilities: bool = False
    """Whether the file returns the probabilities of classes, at their temperature, and not raw outputs."""


def export(request: ExportRequest) -> int:
    """Write the ONNX file and its JSON; returns 0.

    Raises:
        DeviceError: if a package is missing.
        CheckpointError: if there is no trained model, it cannot be exported, or the file computes other outputs.
        StorageError: if the output cannot be written.
    """
    _check_packages()
    thread_limits.limit_threads()
    from drivetrain.inference import onnx_file
    from drivetrain.models import saved_model

    trained = saved_model.load(request.run, consent=request.run_code)
    output = request.output or request.run / "model.onnx"
    check_utf8(output)
    example, other_examples, source = _make_examples(trained, request)
    names = onnx_file.list_input_names(trained.network, len(example)), [name or "output" for name in trained.heads]
    calibrated = {name: head for name, head in trained.heads.items() if head.classes and request.probabilities}
    network = onnx_file.FlatOutputs(trained.network, tuple(trained.heads), calibrated)
    temporary = output.with_name(f".{os.getpid()}-{output.name}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        onnx_file.write(network, example, names, trained.preprocessing.get("max_length"), temporary)
        difference = onnx_file.compute_difference(network, temporary, other_examples)
        if difference > MAX_DIFFERENCE:
            raise CheckpointError(
                f"the outputs of {output} differ by {difference:.2g} from those of the network",
                f"at most {MAX_DIFFERENCE:g}",
                "use the model with `drivetrain predict`, and report this network as a bug",
            )
        temporary.replace(output)
        write_json(output.with_suffix(".json"), _describe_model(trained, example, names, calibrated))
    except OSError as error:
        raise storage_error(output, error, "--output FILE") from None
    finally:
        temporary.unlink(missing_ok=True)
    _print_result(output, source, other_examples, difference)
    return 0


def _check_packages() -> None:
    missing = [name for name in ("torch", *PACKAGES) if importlib.util.find_spec(name) is None]
    if missing:
        raise DeviceError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed here",
            f"export needs torch and {', '.join(PACKAGES)}, which the CPU image has, and the images for GPUs have not",
            f"`{installation.INSTALL_EXPORT}`, here or where model/ is copied to",
        )


def _make_examples(trained: SavedModel, request: ExportRequest) -> tuple[Inputs, list[Inputs], str]:
    """Make an example for the export, two comparison batches, and a description of their source."""
    from drivetrain.models import dummy_inputs

    def random_inputs(count: int) -> Inputs:
        return dummy_inputs.make_inputs(trained.preprocessing, count, seed=count)

    problem = read_stored_spec(request.run).problem
    reason = f"{request.run / JOB_FILE}: {problem}" if problem else ""
    if not problem:
        try:
            split, prepare = _load_samples(trained, request)
        except (DataError, SpecError, StorageError) as error:
            reason = str(error).splitlines()[0]
    if reason:
        if problem != MISSING:
            say_aside(f"export: compared with random samples, since {reason}")
        return random_inputs(TRACED_SAMPLES), [random_inputs(count) for count in TESTED_SAMPLES], "random samples"
    import numpy as np

    examples, start = [], 0
    for count in (TRACED_SAMPLES, *TESTED_SAMPLES):
        ids = np.arange(start, start + count, dtype=np.int64) % len(split)
        examples.append(prepare(split.gather(ids), ids, None))
        start += count
    try:
        # If all texts are as long as the batch is large, the trace would take the two axes for one.
        return random_inputs(TRACED_SAMPLES), examples[1:], "validation samples"
    except CheckpointError:
        return examples[0], examples[1:], "validation samples"


def _load_samples(trained: SavedModel, request: ExportRequest) -> tuple[Split, Preprocessing]:
    """Load the run's validation data."""
    from drivetrain.inference import evaluate

    say_aside("export: reading the run's validation data for the comparison")
    _, dataset = evaluate.load_validation_data(request.run, trained, consent=request.run_code)
    return dataset.validation, dataset.prepare


def _describe_model(
    trained: SavedModel, inputs: Inputs, names: tuple[list[str], list[str]], calibrated: Mapping[str, Head]
) -> dict[str, object]:
    axes = ["batch", "length"] if "max_length" in trained.preprocessing else ["batch"]
    return {
        "task": trained.task,
        "trained": trained.trained,
        "inputs": [
            {"name": name, "type": str(x.dtype).removeprefix("torch."), "shape": [*axes, *x.shape[len(axes) :]]}
            for name, x in zip(names[0], inputs, strict=True)
        ],
        "outputs": [
            _describe_output(name, head, is_calibrated=head.name in calibrated)
            for name, head in zip(names[1], trained.heads.values(), strict=True)
        ],
        "preprocessing": trained.preprocessing,
    }


def _describe_output(name: str, head: Head, *, is_calibrated: bool) -> dict[str, object]:
    properties = asdict(head)
    if not head.classes:
        return {
            "name": name,
            **{key: properties[key] for key in ("columns", "mean", "std")},
            "meaning": "a number is output * std + mean",
        }
    activation = "sigmoid" if head.several else "softmax"
    scores = "the probability of each class is" if head.several else "probabilities are"
    meaning = f"{scores} the {'output' if is_calibrated else f'{activation} of output / temperature'}"
    if head.thresholds:
        predicted = "each class" if head.several else f"the class {head.classes[1]!r}, else {head.classes[0]!r},"
        meaning += f"; {predicted} is predicted if its probability is above its threshold"
    description = {
        "name": name,
        "classes": head.classes,
        "activation": "none" if is_calibrated else activation,
        "temperature": 1.0 if is_calibrated else head.temperature,
    }
    if head.thresholds:
        description["thresholds"] = head.thresholds
    return description | {"meaning": meaning}


def _print_result(output: Path, source: str, other_examples: list[Inputs], difference: float) -> None:
    tried = " and ".join(str(len(inputs[0])) for inputs in other_examples)
    say(
        f"{output}: {output.stat().st_size / 1e6:.2f} MB; under onnxruntime, with {tried} {source}, outputs differ "
        f"from the network's by {difference:.1g} at most"
    )
    say(f"{output.with_suffix('.json')}: how inputs are prepared and what the outputs mean")
