"""Turns pydantic's errors into problems with position, key, what was given, what is possible and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError

from drivetrain.errors import Problem, nearest
from drivetrain.job.document import Document
from drivetrain.job.formatting import Path, dot_key, format_value
from drivetrain.job_spec.yaml_file import SCALARS

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "none": "null",
    "finite": "a finite number",
}
_BOUNDS = {
    "greater_than_equal": (">=", "ge"),
    "greater_than": (">", "gt"),
    "less_than_equal": ("<=", "le"),
    "less_than": ("<", "lt"),
}
_BOOLEANS = dict.fromkeys(("yes", "on", "y"), "true") | dict.fromkeys(("no", "off", "n"), "false")

UNKNOWN_KEY = "unknown key"
_NAMES_ELSEWHERE = {
    "train.optimizer.lr": "learning_rate lr lrate learningrate base_lr max_lr peak_lr init_lr initial_lr",
    "train.optimizer.weight_decay": "weight_decay wd l2 l2_reg decay",
    "train.optimizer.name": "optim opt optimiser",
    "train.optimizer.momentum": "momentum",
    "train.batch_size": "batch batchsize bs mini_batch minibatch train_batch_size per_device_train_batch_size",
    "train.epochs": "epoch n_epochs num_epochs max_epochs nepochs num_train_epochs",
    "train.steps": "max_steps total_steps num_steps iterations max_iter max_iters",
    "train.schedule": "scheduler lr_scheduler lr_schedule lr_scheduler_type",
    "train.schedule.warmup": "warmup warmup_ratio warmup_steps warmup_epochs",
    "train.clip_norm": "grad_clip gradient_clip clip_grad clip_grad_norm max_grad_norm gradient_clip_val clipnorm",
    "train.loss": "criterion loss_fn loss_function objective",
    "train.loss.label_smoothing": "label_smoothing label_smoothing_factor smoothing",
    "train.early_stopping.patience": "patience",
    "train.seed": "random_seed random_state manual_seed",
    "train.max_time": "time_limit timeout max_hours",
    "model.dropout": "dropout drop dropout_rate drop_rate",
    "model.name": "arch architecture backbone network net model_name model_name_or_path",
    "data.train": "dataset data_dir data_path train_data train_path train_file root",
    "data.validation": "val valid val_split validation_split val_data valid_data eval_data test_size",
    "data.test": "test_data test_set test_file holdout",
    "data.image_size": "img_size imgsz imgsize input_size resolution",
    "data.max_length": "max_len max_seq_length max_seq_len maxlen seq_len",
    "optimize.precision": "amp fp16 bf16 mixed_precision half dtype",
    "optimize.micro_batch": "accumulate grad_accum accumulate_grad_batches gradient_accumulation_steps accumulation_steps",
    "optimize.loader_workers": "workers num_workers n_workers dataloader_num_workers",
    "optimize.compile": "torch_compile jit",
    "optimize.compile: graphs": "cuda_graphs cuda_graph cudagraphs reduce_overhead",
    "limits.gpus": "gpu gpus device devices cuda n_gpus",
    "checkpoint.every": "save_every save_steps save_freq save_interval",
    "checkpoint.keep": "save_total_limit save_top_k",
}
"""Names of other frameworks for keys of the spec, some of which come with a value."""
_KEY_OF_NAME = {name: key for key, names in _NAMES_ELSEWHERE.items() for name in names.split()}

Alternative = tuple[type[BaseModel], tuple[str, ...]]
"""Class that a value can have, and its names in pydantic's locations."""


def list_problems(error: ValidationError, model: type[BaseModel], document: Document) -> list[Problem]:
    """List all problems of a validation; pydantic's errors about the alternatives of one value become one problem."""
    errors_by_path: dict[Path, list[Any]] = {}
    for details in error.errors(include_url=False):
        errors_by_path.setdefault(_locate(details, document), []).append(details)
    return [_build_problem(path, errors, model, document) for path, errors in errors_by_path.items()]


def drop_invalid_values(data: Mapping[str, object], error: ValidationError, document: Document) -> dict[str, object]:
    """Return the data without invalid values; a mapping that lacks a key is dropped as a whole."""
    invalid_paths = set()
    for details in error.errors(include_url=False):
        path = _locate(details, document)
        while path and (path not in document.places or isinstance(path[-1], int)):
            path = path[:-1]
        invalid_paths.add(path)

    def drop_invalid(mapping: Mapping[str, object], path: Path) -> dict[str, object]:
        return {
            key: drop_invalid(value, (*path, key)) if isinstance(value, dict) else value
            for key, value in mapping.items()
            if (*path, key) not in invalid_paths
        }

    return drop_invalid(data, ())


def _locate(details: Any, document: Document) -> Path:
    """Return the keys of a pydantic location that exist in the document, without its names of union members."""
    path: Path = ()
    for key in details["loc"]:
        if document.has((*path, key)):
            path = (*path, key)
    if details["type"] == "missing" and isinstance(details["loc"][-1], str):
        path = (*path, details["loc"][-1])
    return path


def _build_problem(path: Path, errors: list[Any], model: type[BaseModel], document: Document) -> Problem:
    """Build the problem of a value from pydantic's errors about it, one for each alternative of its type."""
    details = errors[0]
    match details["type"]:
        case "extra_forbidden":
            explanation = advise_on_earlier_run(path, document) or _explain_unknown(path, details["loc"], model)
        case "missing" if isinstance(details["loc"][-1], str):
            explanation = _explain_missing(path, details["loc"], model)
        case "union_tag_not_found" | "union_tag_invalid":
            path, explanation = _explain_untagged(path, details, model, document)
        case "missing":
            # pydantic reports each missing value of a tuple separately, so the last error has the length.
            length = errors[-1]["loc"][-1] + 1
            explanation = [f"is {format_value(details['input'])}", f"a list of {length}", "add the missing values"]
        case _:
            expected = list(dict.fromkeys(option for alternative in errors for option in _list_expected(alternative)))
            hint = hint_at_earlier_run(path, details["input"]) or _suggest(details["input"], expected)
            explanation = [f"is {format_value(details['input'])}", _list_options(expected), hint]
    return Problem(document.place(path), dot_key(path), *explanation)


def _explain_unknown(path: Path, loc: tuple[object, ...], model: type[BaseModel]) -> list[str]:
    """Return the three parts of an error about an unknown key, with the likeliest key that was meant."""
    key, (owners, alternatives) = str(path[-1]), _find_owners(model, loc)
    names = list(dict.fromkeys(name for owner in owners for name in owner.model_fields))
    other_types = [(owner, tags) for owner, tags in alternatives if owner not in owners and tags]
    tags_with_key = [tags[0] for owner, tags in other_types if key in owner.model_fields]
    other_paths = [key_path for key_path in _find_paths_of_key(model, key) if key_path != path]
    own_key = "" if other_paths else _KEY_OF_NAME.get(key.lower().replace("-", "_"), "")
    is_sibling = own_key.rpartition(".")[0] == dot_key(path[:-1])
    if tags_with_key:
        hint = f"remove it: it is a setting of {_list_options(tags_with_key)}"
    elif own_key and _has_key(model, own_key.partition(":")[0]):
        hint = f'did you mean "{own_key.rpartition(".")[2] if is_sibling else own_key}"?'
    elif not (hint := nearest(key, names, likeness=0.8 if other_paths else 0.5)):
        home = dot_key(other_paths[0]) if other_paths else ""
        hint = f'move it: it is known as "{home}"' if home else "remove it, or see `drivetrain validate --schema`"
    return [UNKNOWN_KEY, f"known keys: {', '.join(names)}", hint]


def _explain_missing(path: Path, loc: tuple[object, ...], model: type[BaseModel]) -> list[str]:
    """Return the three parts of an error about a missing key."""
    fields = [owner.model_fields[loc[-1]] for owner in _find_owners(model, loc)[0] if loc[-1] in owner.model_fields]
    names = [name for field in fields for name in get_args(field.annotation) if isinstance(name, str)]
    meaning = [f": {field.description}" for field in fields if field.description]
    return [
        "is missing",
        f"one of {', '.join(names)}" if names else f"a required key{''.join(meaning[:1])}",
        f"add `{path[-1]}:`",
    ]


def _explain_untagged(path: Path, details: Any, model: type[BaseModel], document: Document) -> tuple[Path, list[str]]:
    """Return the path and the three parts of an error about a mapping whose `name:` or `source:` fits no class."""
    discriminator = details["ctx"]["discriminator"]
    # pydantic quotes the discriminator if it is a field; otherwise it is a function, which looks at `source`.
    tag = discriminator.strip("'") if discriminator.startswith("'") else "source"
    possible_tags: list[str] = []
    for owner, tags in _find_owners(model, (*details["loc"], ""))[1]:
        if tag in owner.model_fields:
            possible_tags += tags
    possible = f"one of {', '.join(possible_tags)}" if possible_tags else f"no `{tag}:` for this task"
    if tag not in details["input"]:
        return path, [f"has no {tag}", possible, f"add `{tag}:`"]
    value = details["input"][tag]
    value_path = (*path, tag) if document.has((*path, tag)) else path
    return value_path, [
        f"is {format_value(value)}",
        possible,
        nearest(str(value), possible_tags) or ("pick one" if possible_tags else "remove it"),
    ]


def _list_expected(details: Any) -> Iterator[str]:
    """Yield the possible values according to one of pydantic's errors."""
    kind, context = details["type"], details.get("ctx", {})
    if kind in _BOUNDS:
        operator, name = _BOUNDS[kind]
        yield f"a number {operator} {context[name]}".removesuffix(".0")
    elif kind == "literal_error":
        yield from context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
    elif kind == "string_too_short":
        yield "text that is not empty"
    elif kind in ("too_short", "too_long"):
        yield f"a list of {context.get('min_length', context.get('max_length'))}"
    elif kind.startswith("bool"):
        yield from ("true", "false")
    else:
        yield _TYPES.get(kind.split("_")[0], details["msg"])


def _suggest(value: object, expected: list[str]) -> str:
    """Return advice on how to correct a value."""
    text = str(value).strip()
    if value is None:
        return "give a value, or remove the key"
    if "true" in expected and text.lower() in _BOOLEANS:
        return f'did you mean "{_BOOLEANS[text.lower()]}"?'
    if isinstance(value, float) and "a whole number" in expected and value.is_integer():
        return f"write {int(value)}"
    if "number" in expected[0] and isinstance(value, str) and SCALARS["float"][0].fullmatch(text):
        return "write it without quotes"
    if isinstance(value, int | float) and expected == ["text"]:
        return f'write it in quotes: "{format_value(value)}"'
    options = [option for option in expected if " " not in option]
    return (nearest(value, options) if isinstance(value, str) else "") or "change the value"


def _list_options(options: Iterable[str]) -> str:
    *initial, last = options
    return f"{', '.join(initial)} or {last}" if initial else last


def _find_owners(model: type[BaseModel], loc: tuple[object, ...]) -> tuple[list[type[BaseModel]], list[Alternative]]:
    """Find the classes that can have the last key of a location, and all classes that are possible there."""
    alternatives: list[Alternative] = [(model, ())]
    owners = [model]
    for key in loc[:-1]:
        fields = [owner.model_fields[key] for owner in owners if key in owner.model_fields]
        if fields:
            alternatives = [alternative for field in fields for alternative in _list_alternatives(field.annotation)]
            owners = [owner for owner, _ in alternatives]
        else:
            # The location continues with the name of a union member, not with a key.
            owners = [owner for owner, tags in alternatives if key in (*tags, owner.__name__)] or owners
    return owners, alternatives


def _list_alternatives(annotation: Any) -> Iterator[Alternative]:
    """Yield the classes of an annotation with their tags: the values of their `name:`, or pydantic's Tag."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        name = annotation.model_fields.get("name")
        literals = get_args(name.annotation) if name else ()
        yield annotation, tuple(literal for literal in literals if isinstance(literal, str))
    elif get_origin(annotation) is Annotated:
        tags = tuple(metadata.tag for metadata in annotation.__metadata__ if isinstance(metadata, Tag))
        for owner, owner_tags in _list_alternatives(get_args(annotation)[0]):
            yield owner, tags or owner_tags
    else:
        for argument in get_args(annotation):
            yield from _list_alternatives(argument)


def _find_paths_of_key(model: type[BaseModel], key: str, path: Path = ()) -> Iterator[Path]:
    """Yield all paths of the spec at which a key of this name exists."""
    for name, field in model.model_fields.items():
        if name == key:
            yield (*path, name)
        for owner, _ in _list_alternatives(field.annotation):
            yield from _find_paths_of_key(owner, key, (*path, name))


def _has_key(model: type[BaseModel], key: str) -> bool:
    """Return whether the spec of this task has the key."""
    return any(dot_key(path) == key for path in _find_paths_of_key(model, key.rsplit(".", 1)[-1]))


FROM_KEY = ("model", "from")
_NETWORKS = ("name", "file", "source")
"""Keys that name a network."""


def advise_on_earlier_run(path: Path, document: Document) -> list[str] | None:
    """Return the three parts of an error about an unknown key below `model`; None if no run is named."""
    if path[:1] != FROM_KEY[:1] or len(path) != len(FROM_KEY) or not document.has(FROM_KEY):
        return None
    model: dict[str, Any] = document.data["model"]
    run = format_value(model["from"]).strip("'")
    network_keys = [key for key in _NETWORKS if key in model]
    if path != FROM_KEY:
        if network_keys:
            return None  # the error about `from` explains it
        return [
            "is a setting of a network, and `from` uses the network of the earlier run",
            "from, freeze and unfreeze",
            "remove it",
        ]
    if "file" in model or document.data.get("task") == "custom":
        return [
            "names a run, and the network is your own code",
            "the weights of the run, for the same network",
            f"write `weights: {run}/model/model.safetensors` instead",
        ]
    if not network_keys:
        return None
    replace = f"--set 'model={{from: {run}}}'"
    by_set = document.place(FROM_KEY).startswith("--set")
    return [
        f"names a run, and model.{network_keys[0]} names a network",
        "the network of the run: from, freeze and unfreeze, and no other key",
        f"write {replace}, which replaces all of `model`" if by_set else f"write `model: {{from: {run}}}`",
    ]


def hint_at_earlier_run(path: Path, value: object) -> str:
    """Return a hint for a value of `model` that looks like a run folder; empty for others."""
    is_run = path == FROM_KEY[:1] and isinstance(value, str) and "/" in value
    return f"to start from a run: `model: {{from: {value}}}`" if is_run else ""
