"""What a bare machine lacks for a run of the compose file: podman, an image with Python, and wheels of packages.

A machine for tests often has neither a Docker engine nor a way to a registry of images; Debian's packages and a Python
package index are enough here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from tests.compose.record import Record

PACKAGES: Final = ("podman", "runc", "netavark", "aardvark-dns", "iptables", "uidmap", "fuse-overlayfs", "debootstrap")
PUBLIC_BASE: Final = "python:3.11-slim"
OWN_BASE: Final = "localhost/python-base:bookworm"
PYTHON_OF_BASES: Final = "3.11"
INSTALL_LIMIT_S: Final = 900


def why_no_podman(record: Record) -> str:
    """Installs podman if it is missing; the reason why that cannot be done, or ""."""
    if shutil.which("podman") and shutil.which("runc"):
        return ""
    if shutil.which("apt-get") is None:
        return "podman and runc are not installed, and there is no apt-get to install them"
    if os.geteuid() != 0:
        return "podman and runc are not installed, and only root may install them"
    record.run("apt-get", "update", limit_s=INSTALL_LIMIT_S, is_checked=False, is_shown=False)
    install = ("apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES)
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = record.run(*install, limit_s=INSTALL_LIMIT_S, is_checked=False, is_shown=False, changes=environment)
    except subprocess.TimeoutExpired:
        return "apt-get takes too long to install podman"
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"apt-get cannot install podman: {last}" if done.returncode else ""


def base_image(record: Record) -> str:
    """An image with Python: the one in BASE, else the public one, else one made of Debian's packages."""
    if named := os.environ.get("BASE"):
        return named
    if _has_image(record, PUBLIC_BASE) or _is_pulled(record, PUBLIC_BASE):
        return PUBLIC_BASE
    if not _has_image(record, OWN_BASE):
        tree, archive = record.scratch / "base", record.scratch / "base.tar"
        include = "--include=ca-certificates,python3,python3-venv"
        command = ("debootstrap", "--variant=minbase", include, "bookworm", str(tree))
        record.run(*command, limit_s=INSTALL_LIMIT_S, is_shown=False)
        left_out = ("--exclude=./var/cache/apt/*", "--exclude=./var/lib/apt/lists/*")
        record.run("tar", "-C", str(tree), *left_out, "-cf", str(archive), ".", limit_s=300, is_shown=False)
        record.run("podman", "import", str(archive), OWN_BASE, limit_s=300, is_shown=False)
        shutil.rmtree(tree)
        archive.unlink()
    return OWN_BASE


def gather_wheels(record: Record, folder: Path) -> None:
    """Into `folder`: those in the folder that WHEELS names, else those that pip downloads."""
    if given := os.environ.get("WHEELS"):
        for path in Path(given).glob("*.whl"):
            shutil.copy2(path, folder)
        return
    project = tomllib.loads((record.root / "pyproject.toml").read_text())["project"]
    download = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    kind = ("--only-binary", ":all:", "--python-version", PYTHON_OF_BASES, "--constraint", "constraints-dev.txt")
    where = ("--dest", str(folder), "--find-links", str(folder))
    record.run(*download, *kind, *where, *project["dependencies"], "setuptools>=77", limit_s=1200, is_shown=False)


def _has_image(record: Record, name: str) -> bool:
    return record.run("podman", "image", "exists", name, limit_s=60, is_checked=False).returncode == 0


def _is_pulled(record: Record, name: str) -> bool:
    try:
        done = record.run("podman", "pull", "--quiet", name, limit_s=300, is_checked=False, is_shown=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
