"""Whatever modes the caller is in, shared tensors are made plainly."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

import torch


@contextmanager
def plainly() -> Iterator[None]:
    """Tensors of the host, which can be trained later: not the caller's default device, not inference tensors."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        yield
