"""Networks built by a function of the user, and checked on a few samples before training.

The function is called with the `arguments` of the spec. If its signature has one of these names, and `arguments` do not
set it, it also gets:

    outputs      number of outputs per sample; by head name, if there are several heads
    classes      the same, in a classification
    inputs       shape of each input of one sample, as a list of lists; for texts that of the longest one
    vocabulary   number of tokens (texts)
    categories   number of indices of each categorical column (tables)

The network is called with the inputs of a batch, one argument each. It returns (N, outputs), or a mapping of head names
to such tensors if there are several heads.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from drivetrain.data import stateless_random
from drivetrain.data.custom import code_files, user_code
from drivetrain.data.custom.arrays import describe
from drivetrain.data.custom.user_errors import blame_user_code, describe_error, list_user_lines, suggest_action
from drivetrain.data.dataset import Batch, Dataset
from drivetrain.data.tables import features
from drivetrain.errors import CheckpointError, DrivetrainError, SpecError
from drivetrain.job import Job
from drivetrain.job.custom import list_user_functions
from drivetrain.job.model import CustomModel
from drivetrain.job.user_files import UserFunction
from drivetrain.models import buffers, dry_run
from drivetrain.models.code_consent import load_code
from drivetrain.system import torch_errors
from drivetrain.system.console import say_aside

KEY = ("model", "file")


def build(job: Job, spec: CustomModel, dataset: Dataset) -> tuple[nn.Module, dict[str, object]]:
    """Build the network of the job's file; also returns what is needed to build it again.

    Raises:
        SpecError: if the user's code raises, or the network does not fit the data.
    """
    name = f"{spec.factory}() in {spec.file}"
    first = dry_run.first(dataset, dataset.train)
    # Reading the user's samples may have advanced the random state; seed again.
    torch.manual_seed(stateless_random.derive_key(job.train.seed, "weights"))
    with blame_user_code(lambda told, do: SpecError([job.problem(KEY, f"{name} raised {told}", "", do)])):
        code = user_code.open_code(job.folder)
        arguments = code.with_copies(spec.arguments)
        with code_files.record_opened() as opened:
            module, every = code.call(spec.file, spec.factory, arguments, _describe_data(dataset, first))
    if not isinstance(module, nn.Module):
        act = "return an instance: add ()" if isinstance(module, type) else "return the network"
        raise SpecError([job.problem(KEY, f"{name} returned {describe(module)}", "a torch.nn.Module", act)])
    if isinstance(module, nn.DataParallel):
        description = f"{name} returned a DataParallel, which copies the network to every GPU in every step"
        raise SpecError(
            [
                job.problem(
                    KEY,
                    description,
                    "the network itself; limits: {gpus: all} starts one process for each GPU",
                    "return it without DataParallel",
                )
            ]
        )
    buffers.unshare(module)
    with code_files.record_opened(nn.Module) as opened_later:
        dry_run.check(module, dataset, f"the network of {name}", lambda *given: SpecError([job.problem(KEY, *given)]))
    code.keep_opened([*opened, *opened_later])
    kinds = [{"shape": list(x.shape[1:]), "type": str(x.dtype).removeprefix("torch.")} for x in first.inputs]
    return module, {
        "file": spec.file,
        "factory": spec.factory,
        "arguments": every | spec.arguments,
        "inputs": kinds,
    }


def rebuilt(model: Path, digests: Mapping[str, str], origin: Mapping[str, Any], *, consent: bool = False) -> nn.Module:
    """Build the network of a `model/` folder from the code stored there.

    Args:
        model: the folder.
        digests: SHA-256 of each code file.
        origin: file, factory, arguments, and the inputs of one sample.
        consent: whether the user agreed to run the code of a model that lies outside of its run folder.

    Raises:
        CheckpointError: if the code may not be run, differs from what was recorded, or raises.
    """
    code, name = load_code(model, digests, consent=consent), f"{origin['factory']}() in {origin['file']}"
    say_aside(f"running the model's own code: {origin['file']} in {code.folder}")
    with blame_user_code(
        lambda told, _: CheckpointError(f"{name} raised {told}", "the Python and the libraries of the training")
    ):
        for file in (file for file in digests if not file.endswith(".py")):
            code.read(code.folder / file)
        arguments = code.with_copies(origin["arguments"])
        with code_files.record_opened() as opened:
            module = code.call(origin["file"], origin["factory"], arguments)[0]
    code.check_opened(opened)
    if not isinstance(module, nn.Module):
        raise CheckpointError(f"{name} returned {describe(module)}", "a torch.nn.Module")
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        # The first inputs initialize lazy parameters.
        with torch.no_grad():
            module.eval()(*(torch.zeros(2, *x["shape"], dtype=getattr(torch, x["type"])) for x in origin["inputs"]))
    buffers.unshare(module)
    return module


def _describe_data(dataset: Dataset, first: Batch) -> dict[str, object]:
    """What a factory may ask to know about the data, as plain JSON values."""
    counts = {name: head.outputs for name, head in dataset.heads.items() if head.outputs}
    outputs: Any = counts.get("", counts)
    facts = {"inputs": [list(x.shape[1:]) for x in first.inputs]} | ({"outputs": outputs} if outputs else {})
    if outputs and all(head.classes for head in dataset.heads.values()):
        facts["classes"] = outputs
    if dataset.preprocessing.get("kind") == "texts":
        # A batch is as long as its longest text.
        facts["inputs"] = [[dataset.preprocessing["max_length"]] for _ in first.inputs]
        facts["vocabulary"] = dataset.preprocessing["vocabulary"]
    if dataset.preprocessing.get("kind") == "table":
        facts["categories"] = features.from_json(dataset.preprocessing).sizes
    return facts


@contextlib.contextmanager
def blame_job_code(job: Job) -> Iterator[None]:
    """Turn what the user's network or loss raises during training into an error that shows the user's own lines.

    Raises:
        SpecError: in place of the original exception.
    """
    try:
        yield
    except DrivetrainError:
        raise
    except Exception as error:
        lines = list_user_lines(error)
        if (
            torch_errors.is_out_of_memory(error)
            or not any(list_user_functions(job))
            or not (lines or _inside(job, error))
        ):
            raise
        key, part = _last(job, lines)
        description = f"the object returned by {part.factory}() in {part.file} raised {describe_error(error)}"
        raise SpecError([job.problem((*key, "file"), description, "", suggest_action(error))]) from error


def _inside(job: Job, error: BaseException) -> bool:
    """Whether the user's network was running when the error was raised. If torch's layers alone raised it, no line of
    the user's is in the traceback.
    """
    frames = traceback.walk_tb(error.__traceback__)
    return isinstance(getattr(job, "model", None), CustomModel) and any(
        isinstance(frame.f_locals.get("self"), nn.Module) for frame, _ in frames
    )


def _last(job: Job, lines: Sequence[str]) -> tuple[tuple[str, ...], UserFunction]:
    """The job key and function whose file appears in the traceback; the network's if none does."""
    every = [(key, part) for key, part, _ in list_user_functions(job)]
    return next(((key, part) for key, part in every if any(f" {part.file}:" in line for line in lines)), every[0])
