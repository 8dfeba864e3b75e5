"""The C library's memory, kept: giving it back to the system after every forward pass costs more than some passes."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST = 2**31 - 1
_MAPPED_ABOVE = (1 << 30, 32 << 20)  # older versions refuse more than 32 MiB


@cache
def keep_freed_memory() -> bool:
    """Have glibc keep what is freed for the next allocation, in this process from now on; True if it does.

    Other C libraries are left alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    kept = any(mallopt(_M_MMAP_THRESHOLD, size) for size in _MAPPED_ABOVE)
    return kept and bool(mallopt(_M_TRIM_THRESHOLD, _LARGEST))
