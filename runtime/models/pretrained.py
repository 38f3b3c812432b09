"""Pretrained: an encoder in Hugging Face form, from a local folder or the hub, and whether it can be used here."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from runtime.errors import DataError, SpecError
from runtime.job import Job

if TYPE_CHECKING:
    from torch import nn

    from runtime.data.tokenizer import Tokenizer

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
