"""Gathers the next batches in a thread while the current one is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from runtime.data.dataset import Batch
from runtime.data.stateless_random import Ids

WAITING = 2
"""Number of batches that are kept ready."""


def ahead(make: Callable[[Ids], Batch], groups: Sequence[Ids]) -> Iterator[Batch]:
    """`make(ids)` for each group of ids, in order; an exception is raised when its batch is due."""
    waiting = deque[Future[Batch]]()
    pool = ThreadPoolExecutor(1, "batches ahead")
    try:
        for ids in groups:
            waiting.append(pool.submit(make, ids))
            if len(waiting) > WAITING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
