"""Providers of functions for other processes: see :mod:`cotensor.functions.provider`."""

from __future__ import annotations

from .functions.call_context import check_cancelled, current_call
from .functions.provider import SharedTensorProvider

__all__ = ["SharedTensorProvider", "check_cancelled", "current_call"]
