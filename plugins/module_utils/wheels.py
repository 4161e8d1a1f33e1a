# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Locked sets of wheels: what a lock holds, and how uv installs it.

A lock is a pip requirements file in which every line is one exact version with the sha256 of its wheels.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

# argument list and environment -> exit status, standard output, standard error
Runner = Callable[[list[str], Mapping[str, str]], tuple[int, str, str]]

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_COMMENT = re.compile(r"(?:^|\s)#.*")

MANIFEST = "manifest.json"
LOCK = "lock.txt"


class InstallError(Exception):
    """An installer or a check failed; the text says which and shows the end of its output."""


def normalise(name: str) -> str:
    """A distribution's name as the lock spells it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock: str) -> dict[str, str]:
    """Distribution name (normalised) -> exact version."""
    return {normalise(name): version for name, version in _PIN.findall(lock)}


def digest(lock: str) -> str:
    """Eight hex digits that change with any version or hash of the lock, and with nothing else."""
    hashes = sorted(_HASH.findall(_COMMENT.sub("", lock)))
    content = [f"{name}=={version}" for name, version in sorted(pins(lock).items())] + hashes
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:8]


def cache_marker(cache: str, lock: str) -> Path:
    """The file that says: uv's cache already holds every wheel of this lock. Its content is the lock."""
    return Path(cache) / "inference.sglang" / digest(lock)


def write_atomically(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a whole file or nothing: readers never see half of it, and a killed writer leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A new file of a name that cannot be foreseen: some folders belong to the service user, who could lay a link there.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())  # or a node that loses power may keep the new name and nothing in it
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def read_manifest(folder: str) -> dict[str, Any] | None:
    """What was installed in a folder, or None while nothing was installed there completely."""
    try:
        manifest = json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def write_manifest(folder: str, manifest: Mapping[str, Any]) -> None:
    """Declare a folder complete. The last step of an installation."""
    write_atomically(Path(folder) / MANIFEST, json.dumps(manifest, indent=2, sort_keys=True) + "\n")


def report(output: str) -> dict[str, Any]:
    """The JSON object that a program printed on its last such line; libraries may print around it.

    Raises InstallError when there is none.
    """
    for line in reversed(output.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    raise InstallError(f"No report was printed, but:\n{output.strip()[-2000:] or '(nothing)'}")


@contextlib.contextmanager
def alone(folder: str, wait: bool = True) -> Iterator[bool]:
    """Wait until nobody else installs into ``folder``: a run whose controller was killed may still be at it.

    Without ``wait``, gives whether nobody does now.
    """
    path = Path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


class Installer:
    """uv with its cache. Cache and targets belong on one mount: then files are hard links and cost no space.

    ``environment`` is added to uv's: indexes, proxies and certificates of the site (``UV_DEFAULT_INDEX``, …).
    """

    def __init__(self, uv: str, cache: str, environment: Mapping[str, object], run: Runner) -> None:
        self._uv = uv
        self._run = run
        self._cache = cache
        # UV_SYSTEM_CERTS: uv's own list does not know the certificates of a site's proxy.
        own = {"UV_CACHE_DIR": cache, "UV_SYSTEM_CERTS": "1", "UV_NO_PROGRESS": "1"}
        self._environment = {**own, **{name: str(value) for name, value in environment.items()}}

    def _call(self, *arguments: str) -> None:
        argv = [self._uv, *arguments]
        try:
            status, _output, error = self._run(argv, self._environment)
        except OSError as problem:
            raise InstallError(f"{self._uv} cannot be run ({problem.strerror}): run the uv role first") from problem
        if status != 0:
            raise InstallError(f"`{' '.join(argv)}` failed with {status}:\n{error.strip()[-2000:]}")

    def _with_lock(self, lock: str, folder: str, command: str, *arguments: str) -> None:
        path = Path(folder) / LOCK
        write_atomically(path, lock)
        _forget_half_installed(Path(folder))
        self._call("pip", command, "--require-hashes", "--no-build", *arguments, str(path))
        write_atomically(cache_marker(self._cache, lock), lock)

    def install_environment(self, lock: str, folder: str, python: str) -> None:
        """Make ``folder`` a virtual environment of ``python`` that holds exactly the lock. Resumes what was begun."""
        # Without pyvenv.cfg, which is written last, uv would take bin/python for the system's own environment.
        if not all((Path(folder) / name).exists() for name in ("bin/python", "pyvenv.cfg")):
            self._call("venv", "--python", python, "--no-python-downloads", "--allow-existing", folder)
        self._with_lock(lock, folder, "sync", "--python", str(Path(folder) / "bin" / "python"))

    def install_folder(self, lock: str, folder: str, python: str) -> None:
        """Unpack the lock's wheels into ``folder``, without an environment around them."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._with_lock(lock, folder, "install", "--python", python, "--target", folder, "--no-deps", "--requirements")


def _forget_half_installed(folder: Path) -> None:
    """Make uv install again what it was killed at: METADATA, by which it knows a distribution, comes before the files.

    INSTALLER comes after them (uv 0.13.9).
    """
    for layout in ("*.dist-info", "lib/python*/site-packages/*.dist-info"):
        for information in folder.glob(layout):
            if not (information / "INSTALLER").exists():
                shutil.rmtree(information)
