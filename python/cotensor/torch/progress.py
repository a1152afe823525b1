"""How far a long copy is."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Union

logger = logging.getLogger("cotensor.torch")

#: None: a bar on a terminal once it takes two seconds, if tqdm is installed. True and False: always and never. Or a
#: function of the bytes done and the bytes in all.
Progress = Union[None, bool, Callable[[int, int], Any]]

#: Bytes between two reports.
STEP_BYTES = 64 << 20


@contextmanager
def reporting(progress: Progress, what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A function that is told of bytes just done."""
    done = 0
    if callable(progress):
        callback = progress

        def tell(count: int) -> None:
            nonlocal done
            done += count
            callback(done, total_bytes)

        callback(0, total_bytes)
        yield tell
        return
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda count: None
        return
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        if progress:
            logger.info("%s: %d bytes", what, total_bytes)
        yield lambda count: None
        return
    delay = 0 if progress else 2
    with tqdm(total=total_bytes, desc=what, unit="B", unit_scale=True, unit_divisor=1024, delay=delay) as bar:
        yield lambda count: bar.update(count)
