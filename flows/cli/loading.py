"""Loading libraries without a look through them for garbage.

Python's collector of circular garbage runs while objects are made, and what a library makes when it is loaded stays for good.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Inside the block, which only imports, nothing is collected; afterwards nothing that is there by then is looked through again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
