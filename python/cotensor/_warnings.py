"""Warnings about the surroundings of a program: its configuration file, its daemon."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Optional


def warn(message: str) -> None:
    """Gives a :class:`RuntimeWarning` at the line outside of this package that led to it."""
    frame: Optional[FrameType] = sys._getframe()
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
