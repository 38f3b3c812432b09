"""A job that trains on pairs of texts."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, processors

from tests import reports
from tests.task_cases import Case

ENDS = {"bert": (("[SEP]", 3), ("[CLS]", 2)), "roberta": (("[SEP]", 3), ("[CLS]", 2))}
PROCESSORS: dict[str, Any] = {"bert": processors.BertProcessing, "roberta": processors.RobertaProcessing}
WORDS = [
    "la",
    "bomba",
    "pierde",
    "aceite",
    "motor",
    "fuga",
    "eje",
    "vibra",
    "caliente",
    "junta",
    "sensor",
    "falla",
    "ruido",
    "gotea",
]


def write_table(path: Path, rows: int = 48) -> Path:
    """Pairs of very different lengths; the class is whether both begin alike."""
    drawn = np.random.default_rng(7)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["first", "second", "third", "same"])
        for row in range(rows):
            texts = [[WORDS[i] for i in drawn.integers(0, len(WORDS), 1 + drawn.integers(0, 14))] for _ in range(3)]
            texts[1][0] = texts[0][0] if row % 2 else "no"
            writer.writerow([*map(" ".join, texts), "yes" if row % 2 else "no"])
    return path


def save_encoder(folder: Path, family: str) -> Path:
    """A small network with the family's own template: bert tells the texts by their token types, roberta does not."""
    saved = reports.save_encoder(folder, family)
    tokenizer = Tokenizer.from_file(str(saved / "tokenizer.json"))
    tokenizer.post_processor = PROCESSORS[family](*ENDS[family])
    tokenizer.save(str(saved / "tokenizer.json"))
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    names = ["input_ids", *(["token_type_ids"] if family == "bert" else []), "attention_mask"]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": names, **special}
    (saved / "tokenizer_config.json").write_text(json.dumps(config))
    reports.edit_json(saved / "config.json", pad_token_id=0)
    return saved


def make_token_rows(count: int, offset: int) -> list[list[int]]:
    return [list(range(offset, offset + length)) for length in range(count)]


def write_files(folder: Path) -> None:
    """Training and validation pairs, and a network with token types."""
    save_encoder(folder, "bert")
    write_table(folder / "train.csv")
    write_table(folder / "held.csv", 11)


CASE = Case(
    write_files,
    ".csv",
    "task: text-classification\ndata: {train: train.csv, validation: held.csv, text: [first, second], labels: same, "
    "max_length: 12, truncation: middle}\n"
    "model: {source: transformers, name: saved, freeze: {embeddings: true, layers: 1}}\n",
)
