"""Tokenizes texts with a vocabulary learned from the job's texts, or with the vocabulary of a pretrained encoder."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from drivetrain.data.text.encoded import Encoded, Ragged, find_template
from drivetrain.errors import CheckpointError, DataError
from drivetrain.job.text import Truncation
from drivetrain.pretrained.folder import ENCODERS, Pretrained, quiet_transformers

if TYPE_CHECKING:
    import pyarrow
    import tokenizers

    Texts = Sequence[pyarrow.ChunkedArray]
    """Text columns of the same length."""

TEXTS_PER_CALL = 10_000
"""Largest number of texts tokenized in one call, which distributes them over threads."""
FIRST_TEXTS = 10
"""Number of texts tokenized in the first call."""
VOCABULARIES = ("vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""Vocabulary files of older tokenizer formats."""
LONGEST_WORD = 100
"""Number of letters after which our own vocabulary splits a long word, such as a DNA sequence. WordPiece reads a longer
word as one unknown token, and the time to read a word grows with the cube of its length.
"""
_PAD, _UNKNOWN, _CLASS, _SEPARATOR, _MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class Tokenizer:
    """Tokenizer of the tokenizers library, and its padding token."""

    inner: tokenizers.Tokenizer
    pad: int
    """Id of the padding token."""

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids: one more than the largest."""
        return max(self.inner.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def unknown_token(self) -> int | None:
        """Id of the token for text outside the vocabulary; None if the vocabulary covers every text."""
        model = self.inner.model
        if type(model).__name__ == "Unigram":
            # The library exposes this number only in the stored form of the model.
            number: int | None = json.loads(model.__getstate__())["unk_id"]
            return number
        name = getattr(model, "unk_token", None)
        return self.inner.token_to_id(name) if name else None

    def find_unknown_words(self, text: str) -> list[str]:
        """Find the words of a text for which the tokenizer has no token."""
        encoding = self.inner.encode(text, add_special_tokens=False)
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [text[start:end] for token, (start, end) in pairs if token == self.unknown_token]

    def encode(self, columns: Texts) -> Encoded:
        """Tokenize each text of each column.

        Raises:
            DataError: if there are several columns, and no special token that can separate them.
        """
        with refuse_panics():
            text_template = find_template(self.inner, len(columns))
        if text_template is None:
            raise DataError(
                f"names {len(columns)} columns, and this tokenizer has no special token to put between them",
                "a tokenizer with a separator, as bert and roberta have; or one column",
                "use another network, or join the columns in the file",
                key="data.text",
            )

        def tokenize(texts: pyarrow.ChunkedArray) -> Iterator[list[list[int]]]:
            for part in _iterate_column(texts):
                with refuse_panics():
                    encodings = self.inner.encode_batch_fast(part, add_special_tokens=False)
                yield [encoding.ids for encoding in encodings]

        return Encoded(tuple(Ragged.from_chunks(tokenize(texts)) for texts in columns), text_template)

    def to_json(self, longest: int, side: Truncation) -> dict[str, object]:
        """Return the tokenizer as plain JSON values for `from_json`.

        They also contain the truncation to `longest` tokens, for other programs that load the tokenizer. The library
        cannot truncate in the middle, so with `middle` no truncation is stored.
        """
        if side != "middle":
            self.inner.enable_truncation(longest, direction=side)
        document = {"json": self.inner.to_str(), "pad": self.pad}
        self.inner.no_truncation()
        return document


def from_json(data: dict[str, Any]) -> Tokenizer:
    """Rebuild the tokenizer from `Tokenizer.to_json`, without truncation.

    Raises:
        CheckpointError: if the library cannot read it.
    """
    try:
        inner = load_library().Tokenizer.from_str(data["json"])
    except Exception as error:  # the library raises the base class
        raise CheckpointError(
            f"config.json of the model has a wrong preprocessing.tokenizer.json: {error}",
            "a tokenizer as stored at the end of training",
            "copy the folder again, or use the version of drivetrain that wrote it",
        ) from None
    inner.no_truncation()
    return Tokenizer(inner, data["pad"])


@contextlib.contextmanager
def refuse_panics() -> Iterator[None]:
    """Turn a panic of the tokenizers library in this block into an error without the library's text. An untrusted
    tokenizer panics, for example, if its expressions need exponential time.

            Raises:
                DataError: if the library panics.
    """
    # Before it raises, the library writes to the file descriptor directly, bypassing Python.
    with tempfile.TemporaryFile() as written:
        sys.stderr.flush()
        saved_stderr = os.dup(2)
        os.dup2(written.fileno(), 2)
        reason = ""
        try:
            yield
        except BaseException as error:
            if type(error).__module__ != "pyo3_runtime":
                raise
            reason = str(error).partition("\n")[0][:200]
        finally:
            os.dup2(saved_stderr, 2)
            os.close(saved_stderr)
            written.seek(0)
            if not reason:
                os.write(2, written.read())
    if reason:
        raise DataError(
            f"the tokenizer cannot split a text: {reason}",
            "a tokenizer whose expressions need little time for each of the texts",
            "use another network, or remove the texts with long repetitions",
        )


def load_library() -> Any:
    """Import the tokenizers library, with as many threads as torch uses; raises DataError if it is not installed."""
    # By default the library uses a thread for every CPU of the host, and warns in each worker process.
    import torch

    os.environ.setdefault("RAYON_NUM_THREADS", str(torch.get_num_threads()))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        import tokenizers
    except ImportError:
        raise DataError(
            "this task needs the package tokenizers, which is not installed",
            "an environment with tokenizers and transformers",
            "`make setup` or pip install tokenizers transformers, or use an image of this project",
        ) from None
    return tokenizers


def describe_rule(lower_case: bool) -> str:
    """Describe how texts are normalized before a vocabulary is learned from them."""
    return f"NFC, {'lower case, accents' if lower_case else 'capital letters and accents'} kept"


def learn(columns: Texts, size: int, lower_case: bool = True) -> Tokenizer:
    """Learn a WordPiece vocabulary (Wu et al. 2016) of at most `size` tokens from pyarrow text columns.

    The same texts give the same vocabulary in every process, with any number of threads.
    """
    inner = _build_wordpiece(load_library(), lower_case)
    alphabet = _find_alphabet(inner, columns, size)
    # The trainer numbers the letters inside words (`##a`) in an order that differs between processes. Passed as special
    # tokens, they are numbered in the given order.
    letters_inside_words = [f"##{letter}" for letter in alphabet]
    trainer = load_library().trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[*SPECIAL, *letters_inside_words],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    inner.train_from_iterator(_iterate_all(columns), trainer)
    token_ids = inner.get_vocab(with_added_tokens=True)
    # In the new tokenizer, only the real special tokens are special.
    learned = _build_wordpiece(load_library(), lower_case, dict(sorted(token_ids.items(), key=lambda item: item[1])))
    learned.add_special_tokens(list(SPECIAL))
    return Tokenizer(learned, token_ids[_PAD])


def load_pretrained(source: Pretrained) -> Tokenizer:
    """Load the tokenizer in the folder of a pretrained encoder.

    Raises:
        SpecError: if the folder has no tokenizer, or the tokenizer does not fit the encoder.
    """
    if not hasattr(source.config, "vocab_size"):
        source.refuse(
            f"{source.folder} is a {source.config.model_type}, which does not process text",
            ENCODERS,
            "use another folder",
        )
    path = source.folder / "tokenizer.json"
    possible = "a folder with tokenizer.json or vocab.txt, as save_pretrained writes it"
    try:
        with refuse_panics():
            inner = load_library().Tokenizer.from_file(str(path)) if path.exists() else _convert(source)
    except Exception as error:  # the library raises plain Exceptions
        source.refuse(f"the tokenizer in {source.folder} cannot be used: {str(error)[:300]}", possible, "save it again")
    inner.no_truncation()
    inner.no_padding()
    pad = getattr(source.config, "pad_token_id", None)
    text_tokenizer = Tokenizer(inner, inner.token_to_id(_PAD) or 0 if pad is None else pad)
    if text_tokenizer.vocabulary_size > source.config.vocab_size:
        source.refuse(
            f"the tokenizer in {source.folder} has {text_tokenizer.vocabulary_size:,} tokens, the network {source.config.vocab_size:,}",
            "both from the same network",
            "save the right tokenizer",
        )
    return text_tokenizer


def _convert(source: Pretrained) -> tokenizers.Tokenizer:
    """Load a tokenizer that is stored in one of the older formats."""
    if not any((source.folder / name).exists() for name in VOCABULARIES):
        # The library would create a tokenizer without words.
        raise FileNotFoundError(f"it has none of tokenizer.json, {', '.join(VOCABULARIES)}")
    with quiet_transformers() as transformers:
        loaded = transformers.AutoTokenizer.from_pretrained(
            source.folder, config=source.config, local_files_only=True, trust_remote_code=False
        )
    return loaded.backend_tokenizer  # type: ignore[no-any-return]


def _build_wordpiece(
    tokenizers: Any, lower_case: bool, token_ids: dict[str, int] | None = None
) -> tokenizers.Tokenizer:
    """Build a WordPiece tokenizer that normalizes texts as described by `describe_rule`.

    Without token ids its vocabulary is empty, to be learned; with them, it puts [CLS] and [SEP] around each text.
    """
    text_tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(token_ids or {}, unk_token=_UNKNOWN))
    clean = tokenizers.normalizers.BertNormalizer(strip_accents=False, lowercase=lower_case)
    text_tokenizer.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.NFC(), clean])
    pieces = tokenizers.pre_tokenizers.Split(tokenizers.Regex(f".{{1,{LONGEST_WORD}}}"), "isolated")
    words = tokenizers.pre_tokenizers.BertPreTokenizer()
    text_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([words, pieces])
    if token_ids:
        ends = [(_CLASS, token_ids[_CLASS]), (_SEPARATOR, token_ids[_SEPARATOR])]
        text_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{_CLASS} $A {_SEPARATOR}", pair=f"{_CLASS} $A {_SEPARATOR} $B {_SEPARATOR}", special_tokens=ends
        )
    return text_tokenizer  # type: ignore[no-any-return]


def _find_alphabet(inner: tokenizers.Tokenizer, columns: Texts, size: int) -> list[str]:
    """Find the most frequent letters of the normalized texts, at most a quarter of the vocabulary size; sorted."""
    counts: Counter[str] = Counter()
    for part in _iterate_all(columns):
        counts.update(inner.normalizer.normalize_str("\n".join(part)))
    letters = sorted((-count, letter) for letter, count in counts.items() if not letter.isspace())
    return sorted(letter for _, letter in letters[: size // 4])


def _iterate_column(texts: pyarrow.ChunkedArray) -> Iterator[list[str]]:
    """Yield a pyarrow text column as lists of at most TEXTS_PER_CALL texts.

    The first lists are short, so that a tokenizer that needs seconds for a text is refused early.
    """
    start, size = 0, FIRST_TEXTS
    while start < len(texts):
        yield texts.slice(start, size).to_pylist()
        start, size = start + size, min(10 * size, TEXTS_PER_CALL)


def _iterate_all(columns: Texts) -> Iterator[list[str]]:
    """Yield all texts, column after column, as lists of TEXTS_PER_CALL texts."""
    return chain.from_iterable(map(_iterate_column, columns))
