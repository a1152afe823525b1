"""Where memory lies: which file is mapped at an address, and where in it."""

from __future__ import annotations

from typing import Tuple


def place_at(address: int) -> Tuple[str, int]:
    """Inode and offset in bytes of what is mapped there. Equal places are one memory, whatever the address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            columns = line.split()
            start, end = (int(part, 16) for part in columns[0].split("-"))
            if start <= address < end:
                assert columns[4] != "0", f"no file is mapped at {address:#x}"
                return columns[4], int(columns[2], 16) + address - start
    raise AssertionError(f"nothing is mapped at {address:#x}")
