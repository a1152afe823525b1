"""The file and the offset that are mapped at an address."""

from __future__ import annotations

from typing import Tuple


def mapped_at(address: int) -> Tuple[str, int]:
    """The inode and the offset in bytes of the file that is mapped at `address`. Equal results are the same memory."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            columns = line.split()
            start, end = (int(part, 16) for part in columns[0].split("-"))
            if start <= address < end:
                assert columns[4] != "0", f"no file is mapped at {address:#x}"
                return columns[4], int(columns[2], 16) + address - start
    raise AssertionError(f"nothing is mapped at {address:#x}")
