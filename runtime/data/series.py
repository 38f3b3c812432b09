"""Series: the data of a series job: windows of a long table, or arrays of windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.data import bad, stacks, stratify, targets, timeline, windows
from runtime.data.bad import Bad
from runtime.data.dataset import Dataset, Head, New, as_it_is
from runtime.data.labels import listed
from runtime.data.stacks import Stack
from runtime.data.timeline import Layout, Timeline
from runtime.data.windows import Scale, SeriesSplit
from runtime.draws import Ids
from runtime.errors import DataError
from runtime.job.series import SeriesClassificationJob, SeriesJob
