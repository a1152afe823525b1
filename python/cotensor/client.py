"""Calls of functions of other processes: see :mod:`cotensor.functions.client`."""

from __future__ import annotations

from .functions.client import SharedTensorClient

__all__ = ["SharedTensorClient"]
