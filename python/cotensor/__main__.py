"""``python -m cotensor``: the command ``cotensor``."""

from __future__ import annotations

import sys


def main() -> int:
    from ._native import main as run

    return run(["cotensor", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
