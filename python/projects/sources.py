"""Gets the archives of the projects from the registries, and unpacks their tests."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from .catalog import Project

#: Of the files that are unpacked from one archive.
_FILES_MAX, _BYTES_MAX = 5_000, 200 << 20
_SECONDS_MAX = 540


class SourceError(Exception):
    """The tests of a project are not to be had."""


def tests_of(project: Project, work: Path) -> Path:
    """The folder with the project's tests below ``work``; they are downloaded once."""
    folder = work / f"{project.name}-{project.version}-{project.sha256[:8]}"
    if folder.is_dir():
        return folder
    archive = work / project.archive
    if not archive.is_file():
        work.mkdir(parents=True, exist_ok=True)
        (_from_debian if project.debian else _from_pypi)(project, work)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != project.sha256:
        raise SourceError(f"{archive}: sha256 is {found}, not {project.sha256}")
    unpacked = work / f"{folder.name}.part"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpack(archive, unpacked, project.members)
    for name in project.add:
        (unpacked / name).touch(exist_ok=False)
    unpacked.rename(folder)
    return folder


def unpack(archive: Path, folder: Path, members: "list[str]") -> None:
    """Writes the files of an archive that begin with one of ``members``, without the name of the archive's folder."""
    count = size = 0
    with tarfile.open(archive) as opened:
        for entry in opened:
            name = entry.name.partition("/")[2]
            if not entry.isfile() or not name.startswith(tuple(members)):
                continue
            count, size = count + 1, size + entry.size
            if count > _FILES_MAX or size > _BYTES_MAX:
                raise SourceError(f"{archive}: more than {_FILES_MAX} files or {_BYTES_MAX} bytes of tests")
            entry.name = name
            # Refuses names outside of the folder.
            opened.extract(entry, folder, filter="data")
    if not count:
        raise SourceError(f"{archive}: has no {', '.join(members)}")


def _from_pypi(project: Project, work: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--no-deps", "--no-binary", ":all:", "--dest", str(work), project.package], work)


def _from_debian(project: Project, work: Path) -> None:
    """Uses the mirror of this system with a list of its own, so that nothing of the system changes."""
    if shutil.which("apt-get") is None:
        raise SourceError(f"{project.name}: {project.debian} needs apt-get")
    listed = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], work)
    mirrors = sorted({line for line in listed.split() if line.rstrip("/").endswith("/debian")})
    if not mirrors:
        raise SourceError(f"{project.name}: apt-get has no mirror of Debian")
    apt = work / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb-src [signed-by={key}] {mirrors[0]} {project.suite} main\n")
    options = {
        "Dir::Etc::SourceList": f"{apt}/sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": f"{apt}/lists",
        "Dir::Cache": f"{apt}/cache",
    }
    own = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    _run(["apt-get", "--quiet", *own, "update"], work)
    _run(["apt-get", "--quiet", *own, "source", "--download-only", project.debian], work)


def _run(command: "list[str]", folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    if done.returncode:
        # Without the address of the registry.
        text = re.sub(r"https?://\S+", "…", done.stderr.strip())
        raise SourceError(f"{' '.join(command[:2])}: {text[-500:]}")
    return done.stdout
