"""Calls of functions of other processes from asyncio, and tasks: see :mod:`cotensor.functions.async_client`."""

from __future__ import annotations

from .functions.async_client import AsyncSharedTensorClient, TaskStatus

__all__ = ["AsyncSharedTensorClient", "TaskStatus"]
