"""The memory of a group of processes, and of the Cotensor daemon that they use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

PROC = Path("/proc")
RECIPES = Path(__file__).resolve().parents[1]
#: The first line of a mapping in smaps: addresses, mode, offset, device, inode, name.
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ \S+ (\d+) *(\S*)")


@dataclass
class Memory:
    """Bytes, as proportional set sizes: a page that several processes map counts once in the sum."""

    #: The processes of the recipe.
    processes: int
    #: The server and the supervisor of the daemon.
    daemon: int = 0
    #: The process in which the daemon runs models.
    model_process: int = 0
    #: Tensors of the daemon that no process maps.
    unmapped: int = 0

    @property
    def total(self) -> int:
        return self.processes + self.daemon + self.model_process + self.unmapped

    def json(self) -> Dict[str, int]:
        return {
            "processes_bytes": self.processes,
            "daemon_bytes": self.daemon,
            "model_process_bytes": self.model_process,
            "unmapped_bytes": self.unmapped,
            "total_bytes": self.total,
        }


def measure(pids: Sequence[int], environment: Optional[Mapping[str, str]] = None) -> Memory:
    """The memory of these processes, and of the daemon of `environment`."""
    memory = Memory(sum(map(pss, pids)))
    if environment:
        status = _daemon(environment)
        server, models = status["server"], status.get("models")
        memory.daemon = pss(server) + (pss(status["supervisor"]) if status["supervisor"] else 0)
        memory.model_process = pss(models) if models else 0
        memory.unmapped = _unmapped(server, [*pids, server, *([models] if models else [])])
    return memory


def pss(pid: int) -> int:
    """The proportional set size of a process in bytes."""
    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no line Pss")


def tree(pid: int) -> List[int]:
    """A process and its descendants."""
    children: Dict[int, List[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            # The name of the program, in parentheses, may contain spaces.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # It has ended.
        children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def _unmapped(server: int, pids: Sequence[int]) -> int:
    """The pages of the server's memfds that none of these processes maps, in bytes."""
    held: Dict[int, int] = {}
    for descriptor in (PROC / str(server) / "fd").iterdir():
        try:
            if os.readlink(descriptor).startswith("/memfd:"):
                about = descriptor.stat()
                held[about.st_ino] = about.st_blocks * 512
        except OSError:
            continue  # It was closed.
    for pid in pids:
        inode = 0
        for line in (PROC / str(pid) / "smaps").read_text().splitlines():
            mapping = _MAPPING.match(line)
            if mapping:
                inode = int(mapping[1]) if mapping[2].startswith("/memfd:") else 0
            elif line.startswith("Pss:") and inode in held:
                held[inode] -= int(line.split()[1]) << 10
    return sum(max(0, left) for left in held.values())


@contextmanager
def own_daemon() -> Iterator[Dict[str, str]]:
    """The environment of programs whose first `cotensor.connect()` starts a daemon in a temporary folder. It is stopped at the
    end.

    Programs of yours need none of this: they use the daemon of their user.
    """
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="cot-", ignore_cleanup_errors=True) as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COTENSOR_")}
        environment = {
            **kept,
            # The programs below without/ import `common`.
            "PYTHONPATH": ":".join(filter(None, [str(RECIPES), kept.get("PYTHONPATH")])),
            "COTENSOR_SOCKET": f"{folder}/s",
            "COTENSOR_CACHE": f"{folder}/cache",
            "COTENSOR_AUTOSTART": "1",
            # Should this process be killed, the daemon ends by itself.
            "COTENSOR_IDLE_EXIT": "60",
            # Only errors on the terminal.
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONWARNINGS": "ignore",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        try:
            yield environment
        finally:
            _command("stop", environment)


def _daemon(environment: Mapping[str, str]) -> Dict[str, Any]:
    """The output of `cotensor status`."""
    found: Dict[str, Any] = json.loads(_command("status", environment))
    assert found["running"], f"no daemon runs at {found['socket']}"
    return found


def _command(name: str, environment: Mapping[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "cotensor", name, "--json", *arguments]
    return subprocess.run(command, env=dict(environment), stdout=subprocess.PIPE, text=True, timeout=300).stdout
