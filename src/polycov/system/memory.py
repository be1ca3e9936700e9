"""The memory of this process."""

import ctypes
import os
import sys
from functools import cache


@cache
def keep_freed_memory() -> bool:
    """Lets this process reuse freed memory instead of returning it to the system; returns whether that was set.

    The C library returns blocks of more than 32 MB, such as activations, and clearing their pages again takes longer
    than the network. Only glibc has this switch; elsewhere nothing happens, nor where the user has set the C library's
    own variables (``MALLOC_…``, ``GLIBC_TUNABLES``).
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" and not chosen else None
    if mallopt is None:
        return False
    done = [mallopt(-3, 2**30), mallopt(-1, 2**31 - 1)]  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    return all(done)
