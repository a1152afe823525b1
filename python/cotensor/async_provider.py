"""Providers of functions that may be ``async def``: see :mod:`cotensor.functions.async_provider`."""

from __future__ import annotations

from .functions.async_provider import AsyncSharedTensorProvider

__all__ = ["AsyncSharedTensorProvider"]
