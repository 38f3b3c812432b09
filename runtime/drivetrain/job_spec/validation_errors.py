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
"""Keys of the spec, some with a value, and the names that they have in other frameworks."""
_KEY_OF_NAME = {word: home for home, words in _NAMES_ELSEWHERE.items() for word in words.split()}

Alternative = tuple[type[BaseModel], tuple[str, ...]]
"""A class that a value can have, and its name in pydantic's locations."""


def list_problems(error: ValidationError, model: type[BaseModel], document: Document) -> list[Problem]:
    """List all errors of a validation; those for alternatives of one value are merged."""
    items_by_path: dict[Path, list[Any]] = {}
    for item in error.errors(include_url=False):
        items_by_path.setdefault(_locate(item, document), []).append(item)
    return [_build_problem(path, items, model, document) for path, items in items_by_path.items()]


def drop_invalid_values(data: Mapping[str, object], error: ValidationError, document: Document) -> dict[str, object]:
    """Return the data without invalid values; a mapping that lacks a key is dropped as a whole."""
    invalid_paths = set()
    for item in error.errors(include_url=False):
        path = _locate(item, document)
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


def _locate(item: Any, document: Document) -> Path:
    """Return the part of a pydantic location that exists in the document; the rest are names of union members."""
    path: Path = ()
    for part in item["loc"]:
        if document.has((*path, part)):
            path = (*path, part)
    if item["type"] == "missing" and isinstance(item["loc"][-1], str):
        path = (*path, item["loc"][-1])
    return path


def _build_problem(path: Path, items: list[Any], model: type[BaseModel], document: Document) -> Problem:
    item = items[0]
    match item["type"]:
        case "extra_forbidden":
            parts = advise_on_earlier_run(path, document) or _explain_unknown(path, item["loc"], model)
        case "missing" if isinstance(item["loc"][-1], str):
            parts = _explain_missing(path, item["loc"], model)
        case "union_tag_not_found" | "union_tag_invalid":
            path, parts = _explain_untagged(path, item, model, document)
        case "missing":
            # pydantic reports each missing item of a tuple separately.
            parts = [
                f"is {format_value(item['input'])}",
                f"a list of {items[-1]['loc'][-1] + 1}",
                "add what is missing",
            ]
        case _:
            expected = list(dict.fromkeys(option for issue in items for option in _list_expected(issue)))
            hint = hint_at_earlier_run(path, item["input"]) or _suggest(item["input"], expected)
            parts = [f"is {format_value(item['input'])}", _list_options(expected), hint]
    return Problem(document.place(path), dot_key(path), *parts)


def _explain_unknown(path: Path, loc: tuple[object, ...], model: type[BaseModel]) -> list[str]:
    key, (owners, alternatives) = str(path[-1]), _find_owners(model, loc)
    names = list(dict.fromkeys(name for owner in owners for name in owner.model_fields))
    other_types = [(owner, tags) for owner, tags in alternatives if owner not in owners and tags]
    tags_with_key = [tags[0] for owner, tags in other_types if key in owner.model_fields]
    other_paths = [other for other in _find_paths_of_key(model, key) if other != path]
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
    fields = [owner.model_fields[loc[-1]] for owner in _find_owners(model, loc)[0] if loc[-1] in owner.model_fields]
    names = [word for field in fields for word in get_args(field.annotation) if isinstance(word, str)]
    meaning = [f": {field.description}" for field in fields if field.description]
    return [
        "is missing",
        f"one of {', '.join(names)}" if names else f"a required key{''.join(meaning[:1])}",
        f"add `{path[-1]}:`",
    ]


def _explain_untagged(path: Path, item: Any, model: type[BaseModel], document: Document) -> tuple[Path, list[str]]:
    """Handle a mapping whose `name:` or `source:` fits none of its classes."""
    discriminator = item["ctx"]["discriminator"]
    # pydantic quotes the discriminator if it is a field; else it is a function, which looks at `source`.
    tag = discriminator.strip("'") if discriminator.startswith("'") else "source"
    possible_tags = [
        word for owner, tags in _find_owners(model, (*item["loc"], ""))[1] for word in tags if tag in owner.model_fields
    ]
    possible = f"one of {', '.join(possible_tags)}" if possible_tags else f"no `{tag}:` for this task"
    if tag not in item["input"]:
        return path, [f"has no {tag}", possible, f"add `{tag}:`"]
    value = item["input"][tag]
    value_path = (*path, tag) if document.has((*path, tag)) else path
    return value_path, [
        f"is {format_value(value)}",
        possible,
        nearest(str(value), possible_tags) or ("pick one" if possible_tags else "remove it"),
    ]


def _list_expected(item: Any) -> Iterator[str]:
    """Yield the possible values, one alternative at a time."""
    kind, context = item["type"], item.get("ctx", {})
    if kind in _BOUNDS:
        sign, name = _BOUNDS[kind]
        yield f"a number {sign} {context[name]}".removesuffix(".0")
    elif kind == "literal_error":
        yield from context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
    elif kind == "string_too_short":
        yield "text that is not empty"
    elif kind in ("too_short", "too_long"):
        yield f"a list of {context.get('min_length', context.get('max_length'))}"
    elif kind.startswith("bool"):
        yield from ("true", "false")
    else:
        yield _TYPES.get(kind.split("_")[0], item["msg"])


def _suggest(value: object, expected: list[str]) -> str:
    text = str(value).strip()
    if value is None:
        return "give a value, or leave the key out"
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
    *first, last = options
    return f"{', '.join(first)} or {last}" if first else last


def _find_owners(model: type[BaseModel], loc: tuple[object, ...]) -> tuple[list[type[BaseModel]], list[Alternative]]:
    """Find the classes that can have the last part of a location, and all classes possible there."""
    alternatives: list[Alternative] = [(model, ())]
    owners = [model]
    for part in loc[:-1]:
        fields = [owner.model_fields[part] for owner in owners if part in owner.model_fields]
        if fields:
            alternatives = [alternative for field in fields for alternative in _list_alternatives(field.annotation)]
            owners = [owner for owner, _ in alternatives]
        else:
            owners = [owner for owner, tags in alternatives if part in (*tags, owner.__name__)] or owners
    return owners, alternatives


def _list_alternatives(annotation: Any) -> Iterator[Alternative]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        name = annotation.model_fields.get("name")
        yield annotation, tuple(word for word in get_args(name.annotation) if isinstance(word, str)) if name else ()
    elif get_origin(annotation) is Annotated:
        tags = tuple(mark.tag for mark in annotation.__metadata__ if isinstance(mark, Tag))
        for owner, owner_tags in _list_alternatives(get_args(annotation)[0]):
            yield owner, tags or owner_tags
    else:
        for argument in get_args(annotation):
            yield from _list_alternatives(argument)


def _find_paths_of_key(model: type[BaseModel], word: str, path: Path = ()) -> Iterator[Path]:
    """Yield all paths of the spec at which a key of this name exists."""
    for name, field in model.model_fields.items():
        if name == word:
            yield (*path, name)
        for owner, _ in _list_alternatives(field.annotation):
            yield from _find_paths_of_key(owner, word, (*path, name))


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
            "is a setting of a network, and `from` takes that of the earlier run",
            "from, freeze and unfreeze",
            "remove it",
        ]
    if "file" in model or document.data.get("task") == "custom":
        return [
            "names a run, and the network is code of yours",
            "its weights, for the same network",
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
