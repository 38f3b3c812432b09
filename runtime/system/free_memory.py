"""Returns memory that is free inside of this process to the operating system."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Make the allocator return free pages, which would count as used; tcmalloc keeps even the largest blocks."""
    ours = ctypes.CDLL(None)
    for name, arguments in (("MallocExtension_ReleaseFreeMemory", ()), ("malloc_trim", (0,))):
        function = getattr(ours, name, None)
        if function is not None:
            function(*arguments)
