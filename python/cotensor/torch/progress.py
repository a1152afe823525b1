"""The progress of long copies."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Union

logger = logging.getLogger("cotensor.torch")

#: ``None`` shows a bar on a terminal after two seconds, if tqdm is installed. True always shows it, False never. A function gets
#: the bytes done and the total bytes.
Progress = Union[None, bool, Callable[[int, int], Any]]

#: Bytes between two reports.
STEP_BYTES = 64 << 20


@contextmanager
def reporting(progress: Progress, what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of bytes that were just done."""
    done = 0
    if callable(progress):
        callback = progress

        def advance(count: int) -> None:
            nonlocal done
            done += count
            callback(done, total_bytes)

        callback(0, total_bytes)
        yield advance
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
