"""The other side of benchmarks/quality.py, in the environment of the peers: trains on files, prints scores on the test file.

    PYTHON -m benchmarks.contest.quality_peers data ROW SEED FOLDER
    PYTHON -m benchmarks.contest.quality_peers CONTENDER SEED FOLDER [SETTINGS]

Every contender learns from the file of training alone. None looks at that of the test before its end; Hugging Face's
Trainer keeps its last weights, as its defaults do. SETTINGS are JSON: layers, width, epochs, batch, rate.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import quality_data

HEADS = ("section", "role")
WARMUP = 50
Scores = dict[str, float]
Rows = list[dict[str, str]]


def main() -> int:
    """Make data, or train one contender."""
    name, *rest = sys.argv[1:]
    if name == "data":
        quality_data.write(rest[0], int(rest[1]), Path(rest[2]))
        return 0
    seed, folder = int(rest[0]), Path(rest[1])
    print(json.dumps(CONTENDERS[name](seed, folder, json.loads(rest[2]) if len(rest) > 2 else {})))
    return 0


def read(folder: Path, part: str) -> Rows:
    """The rows of a part."""
    with (folder / f"{part}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tfidf(seed: int, folder: Path, _: dict[str, Any]) -> Scores:
    """Words and pairs of words, weighted, and a logistic regression for each label column."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    train, test = read(folder, "train"), read(folder, "test")
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    known, new = words.fit_transform([row["text"] for row in train]), words.transform([row["text"] for row in test])
    return {
        head: float(
            LogisticRegression(C=10, max_iter=300, random_state=seed)
            .fit(known, [row[head] for row in train])
            .score(new, [row[head] for row in test])
        )
        for head in HEADS
    }


def trees(seed: int, folder: Path, _: dict[str, Any]) -> Scores:
    """Gradient-boosted trees at their defaults."""
    from sklearn import ensemble

    return _table(
        folder,
        ensemble.HistGradientBoostingClassifier(random_state=seed),
        ensemble.HistGradientBoostingRegressor(random_state=seed),
    )


def linear(seed: int, folder: Path, _: dict[str, Any]) -> Scores:
    """A linear model on scaled numbers."""
    from sklearn import linear_model, pipeline, preprocessing

    models = linear_model.LogisticRegression(max_iter=1000, random_state=seed), linear_model.RidgeCV()
    return _table(folder, *(pipeline.make_pipeline(preprocessing.StandardScaler(), each) for each in models))


def _table(folder: Path, classifier: Any, regressor: Any) -> Scores:
    """Accuracy of the classifier, or R2 of the regressor where the targets are numbers."""
    train, test = read(folder, "train"), read(folder, "test")
    numbers = not train[0]["target"].startswith("class")
    sides = []
    for rows in (train, test):
        inputs = [[float(value) for name, value in row.items() if name != "target"] for row in rows]
        sides.append((inputs, [float(row["target"]) if numbers else row["target"] for row in rows]))
    model = (regressor if numbers else classifier).fit(*sides[0])
    return {"r2" if numbers else "accuracy": float(model.score(*sides[1]))}


def huggingface(seed: int, folder: Path, settings: dict[str, Any]) -> Scores:
    """A BERT of the same size by the Trainer: lower case, no accents, warm-up and a cosine."""
    import tokenizers
    import torch
    import transformers

    transformers.set_seed(seed)
    torch.set_num_threads(1)
    train, test = read(folder, "train"), read(folder, "test")
    words = tokenizers.BertWordPieceTokenizer(lowercase=True, strip_accents=True)
    words.train_from_iterator([row["text"] for row in train], vocab_size=8000, min_frequency=2, show_progress=False)
    classes = {head: sorted({row[head] for row in train + test}) for head in HEADS}
    config = transformers.BertConfig(
        vocab_size=words.get_vocab_size(),
        hidden_size=settings["width"],
        num_hidden_layers=settings["layers"],
        num_attention_heads=4,
        intermediate_size=4 * settings["width"],
        attention_probs_dropout_prob=0.0,
    )

    class Heads(torch.nn.Module):
        """The first token through the pooler, and one output for each head."""

        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertModel(config)
            self.outputs = torch.nn.ModuleList(
                torch.nn.Linear(config.hidden_size, len(classes[head])) for head in HEADS
            )
            for output in self.outputs:
                torch.nn.init.normal_(output.weight, std=0.02)
                torch.nn.init.zeros_(output.bias)

        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, Any]:
            vector = torch.nn.functional.dropout(self.bert(input_ids, attention_mask).pooler_output, 0.1, self.training)
            found = [output(vector) for output in self.outputs]
            loss = sum(torch.nn.functional.cross_entropy(x, labels[:, i]) for i, x in enumerate(found))
            return {"loss": loss, "logits": torch.stack([x.argmax(1) for x in found], dim=1)}

    def samples(rows: Rows) -> list[dict[str, Any]]:
        ids = [encoding.ids for encoding in words.encode_batch([row["text"] for row in rows])]
        return [
            {"input_ids": one, "labels": [classes[head].index(row[head]) for head in HEADS]}
            for one, row in zip(ids, rows, strict=True)
        ]

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        longest = max(len(row["input_ids"]) for row in rows)
        ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
        return {
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
            "labels": torch.tensor([r["labels"] for r in rows]),
        }

    found = predicted(Heads(), collate, samples(train), samples(test), seed, folder, settings)
    right = (found.predictions == found.label_ids).mean(axis=0)
    return {head: float(share) for head, share in zip(HEADS, right, strict=True)}


def predicted(
    model: Any, collate: Any, train: Any, test: Any, seed: int, folder: Path, settings: dict[str, Any]
) -> Any:
    """Train by the Trainer, with warm-up and a cosine; what it predicts for the test."""
    import transformers

    options = transformers.TrainingArguments(
        output_dir=str(folder / "huggingface"),
        per_device_train_batch_size=settings["batch"],
        per_device_eval_batch_size=256,
        num_train_epochs=settings["epochs"],
        learning_rate=settings["rate"],
        lr_scheduler_type="cosine",
        warmup_steps=WARMUP,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        seed=seed,
    )
    trainer = transformers.Trainer(model, options, collate, train)
    trainer.train()
    return trainer.predict(test)


def small_resnet(seed: int, folder: Path, settings: dict[str, Any]) -> Scores:
    """ResNet-18 of transformers with the usual first layer for small pictures, by the Trainer."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(seed)
    sizes = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic"}
    model: Any = ResNetForImageClassification(ResNetConfig(num_channels=1, num_labels=10, **sizes))  # type: ignore[arg-type]
    first = model.resnet.embedder
    first.embedder.convolution = torch.nn.Conv2d(1, 64, 3, padding=1, bias=False)
    torch.nn.init.kaiming_normal_(first.embedder.convolution.weight, mode="fan_out", nonlinearity="relu")
    first.pooler = torch.nn.Identity()
    return _arrays(model, lambda x: (x.unsqueeze(1) - x.mean()) / x.std(), seed, folder, settings)


def cnn_lstm(seed: int, folder: Path, settings: dict[str, Any]) -> Scores:
    """A convolution over the steps, an LSTM and its last output, by the Trainer."""
    import torch

    class Network(torch.nn.Module):
        """(N, steps, channels) to (N, classes)."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv1d(8, settings["width"], 5, padding=2)
            self.lstm = torch.nn.LSTM(settings["width"], settings["width"], batch_first=True)
            self.output = torch.nn.Linear(settings["width"], 10)

        def forward(self, x: torch.Tensor) -> Any:
            steps = torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
            return self.output(self.lstm(steps)[0][:, -1])

    torch.manual_seed(seed)
    return _arrays(Network(), lambda x: (x - x.mean()) / x.std(), seed, folder, settings)


def _arrays(model: Any, scaled: Callable[[Any], Any], seed: int, folder: Path, settings: dict[str, Any]) -> Scores:
    """Accuracy of a network of the Trainer on arrays."""
    import numpy as np
    import torch
    import transformers

    transformers.set_seed(seed)
    torch.set_num_threads(1)

    class WithLoss(torch.nn.Module):
        """A network as the Trainer calls it."""

        def __init__(self) -> None:
            super().__init__()
            self.network = model

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
            found = self.network(x)
            logits = getattr(found, "logits", found)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    sides = []
    for part in ("train", "test"):
        inputs, labels = np.load(folder / f"{part}.npz").values()
        scaled_inputs = scaled(torch.from_numpy(inputs).float())
        sides.append([{"x": x, "labels": int(y)} for x, y in zip(scaled_inputs, labels, strict=True)])

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "x": torch.stack([row["x"] for row in rows]),
            "labels": torch.tensor([row["labels"] for row in rows]),
        }

    found = predicted(WithLoss(), collate, *sides, seed, folder, settings)
    return {"accuracy": float((found.predictions.argmax(axis=1) == found.label_ids).mean())}


def array_trees(seed: int, folder: Path, _: dict[str, Any]) -> Scores:
    """Gradient-boosted trees on the numbers of an array."""
    import numpy as np
    from sklearn.ensemble import HistGradientBoostingClassifier

    (x, y), (new, labels) = (np.load(folder / f"{part}.npz").values() for part in ("train", "test"))
    model = HistGradientBoostingClassifier(random_state=seed).fit(x.reshape(len(x), -1), y)
    return {"accuracy": float(model.score(new.reshape(len(new), -1), labels))}


CONTENDERS: dict[str, Callable[[int, Path, dict[str, Any]], Scores]] = {
    "hugging-face": huggingface,
    "tf-idf": tfidf,
    "trees": trees,
    "linear": linear,
    "resnet18 by the Trainer": small_resnet,
    "cnn-lstm by the Trainer": cnn_lstm,
    "array trees": array_trees,
}

if __name__ == "__main__":
    sys.exit(main())
