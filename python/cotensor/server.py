"""A server of functions, ``shared-tensor-server``: see :mod:`cotensor.functions.server`."""

from __future__ import annotations

import sys

from .functions.server import SharedTensorServer, main

__all__ = ["SharedTensorServer", "main"]

if __name__ == "__main__":
    sys.exit(main())
