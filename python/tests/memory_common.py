"""What is mapped at an address."""

from __future__ import annotations

from typing import List, Tuple


def mapping_at(address: int) -> Tuple[int, List[str]]:
    """The first address of the mapping that has `address`, and the columns of its line in /proc/self/maps."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            columns = line.split()
            start, end = (int(part, 16) for part in columns[0].split("-"))
            if start <= address < end:
                return start, columns
    raise AssertionError(f"nothing is mapped at {address:#x}")


def mapped_at(address: int) -> Tuple[str, int]:
    """The inode and the offset in bytes of the file that is mapped at `address`. Equal results are the same memory."""
    start, columns = mapping_at(address)
    assert columns[4] != "0", f"no file is mapped at {address:#x}"
    return columns[4], int(columns[2], 16) + address - start


def permissions_at(address: int) -> str:
    """The permissions of the mapping, such as `r--s`: `p` is private, `s` is shared."""
    return mapping_at(address)[1][1]
