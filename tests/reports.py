"""Small text jobs: generated reports, a job spec around them, and a Hugging Face folder that is made on the spot."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import torch

from drivetrain.data.source import Source
from drivetrain.data.text import corpus, tokenizer
from drivetrain.job.text import TextJob
from drivetrain.job_spec import load_job as job_spec
from drivetrain.pretrained.folder import quiet_transformers
from jobs.samples import reports

LABELS = "{modo: 0.1, causa: 0.6, prioridad: 0.3}"
ENCODER = "{name: encoder, layers: 2, width: 16, heads: 2, vocabulary: 400}"
TEXT = """
name: reports
task: text-classification
data: {{train: {train}, text: {text}, labels: {labels}{data}}}
model: {model}
train: {{epochs: 2, batch_size: 16{train_keys}}}
checkpoint: {{every: epoch}}
optimize: {{cpu_threads: 1}}
"""


def job(
    folder: Path,
    *,
    train: str = "reports.csv",
    text: str = "descripcion",
    labels: str = LABELS,
    data: str = "",
    model: str = ENCODER,
    train_keys: str = "",
) -> TextJob:
    """A job spec in the folder; `data` and `train_keys` are added to `data:` and `train:`."""
    path = folder / "job.yaml"
    path.write_text(TEXT.format(train=train, text=text, labels=labels, data=data, model=model, train_keys=train_keys))
    loaded_job = job_spec.load(path)
    assert isinstance(loaded_job, TextJob)
    return loaded_job


def write_reports(folder: Path, size: int = 120, seed: int = 0) -> Path:
    """Generated reports as reports.csv."""
    return reports.write(folder, size, seed)[0]


def write_table(path: Path, rows: list[list[str]], header: str = "descripcion,modo") -> Path:
    """A small CSV of one's own."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(header + "\n")
        csv.writer(file).writerows(rows)
    return path


SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES,
    "electra": SIZES | {"embedding_size": 8},
    "albert": SIZES | {"embedding_size": 8},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 64},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
    "vit": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "image_size": 32,
        "patch_size": 16,
    },
}


def save_encoder(folder: Path, family: str = "bert", name: str = "saved") -> Path:
    """A small pretrained encoder, as save_pretrained leaves it, with a tokenizer learned from generated reports."""
    saved = folder / name
    learned_tokenizer = tokenizer.learn(
        corpus.read(Source(write_reports(folder / "words"), "data"), ["descripcion"], {}).texts, 400
    )
    with quiet_transformers() as transformers:
        torch.manual_seed(0)
        sizes = FAMILIES[family] | ({} if family == "vit" else {"vocab_size": learned_tokenizer.vocabulary_size})
        config = transformers.AutoConfig.for_model(family, **sizes)
        transformers.AutoModel.from_config(config).save_pretrained(saved)
    learned_tokenizer.inner.save(str(saved / "tokenizer.json"))
    return saved


def edit_json(path: Path, **values: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
