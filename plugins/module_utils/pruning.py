# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Old releases: which folders may go, and everything that goes with one, down to its wheels in uv's cache.

A release's files are hard links into the cache, so removing the folder alone frees nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ansible_collections.inference.sglang.plugins.module_utils import activations, audit, health, wheels
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

KERNEL_CACHES = Path("/var/cache/sglang")

# A folder on its way out; whoever finds one goes on from there.
_REMOVED = re.compile(r"\.(?P<name>.+)\.removed")

# The name that the role gives a release: version, digest of the lock, digest of the patches. Users may name one
# otherwise, but only such a name and a lock with hashes tell a half-made release from a virtual environment of others.
_MADE = re.compile(r"\d[\w.+]*-[0-9a-f]{8}-(?:[0-9a-f]{8}|none)")
_HASH = "--hash=sha256:"

# A path in the text of a unit.
_PATH = re.compile(r"/[^\s\0\"':;,=]+")
# Nothing lies there, and to look there may mount or block.
_KERNEL = ("/proc/", "/sys/", "/dev/")

# What uv keeps of a wheel: the link to where it is unpacked, what the index said, its metadata, its lock.
_RECORDS = ("", ".http", ".rev", ".msgpack", ".lock")

State = Literal["complete", "half-made", "half-removed"]


@dataclass(frozen=True)
class Release:
    """A folder that role ``sglang`` made.

    ``name``       of the release, also where the folder is half-removed and named otherwise
    ``installed``  when its manifest was written, seconds since the epoch; 0 where it has none
    """

    name: str
    path: Path
    state: State
    installed: float = 0


@dataclass(frozen=True)
class Choice:
    """What is to be done with one release, and why, as the end of "removed because it is …"."""

    release: Release
    remove: bool
    why: str


class UnreadableError(Exception):
    """What must not be removed cannot be told; the text is a finding."""


def survey(releases: Path) -> list[Release]:
    """The release folders below ``releases``, the newest first. Whatever else lies there is not seen at all.

    Raises OSError, and RecursionError for a manifest that is nested too deeply.
    """
    found = []
    for path in sorted(releases.iterdir()) if releases.is_dir() else []:
        if path.is_symlink() or not path.is_dir():
            continue
        if gone := _REMOVED.fullmatch(path.name):
            if _MADE.fullmatch(gone["name"]) or (path / wheels.LOCK).is_file():
                found.append(Release(gone["name"], path, "half-removed"))
        elif (path / wheels.LOCK).is_file() and (path / "pyvenv.cfg").is_file():
            manifest = path / wheels.MANIFEST
            if wheels.read_manifest(str(path)) is not None:
                found.append(Release(path.name, path, "complete", manifest.stat().st_mtime))
            elif _MADE.fullmatch(path.name) and _HASH in _text(path / wheels.LOCK):
                found.append(Release(path.name, path, "half-made"))
    return sorted(found, key=lambda release: release.installed, reverse=True)


def choose(releases: Sequence[Release], keep: int, in_use: Mapping[str, str]) -> list[Choice]:
    """Which releases go: half-removed and half-made ones, then the oldest until ``keep`` are left; none for 0.

    ``in_use``  name -> why it must stay, whatever its age. Those count, too
    """
    complete = [release.name for release in releases if release.state == "complete"]
    removable = [name for name in reversed(complete) if name not in in_use]
    old = removable[: max(len(complete) - keep, 0)]

    def judge(release: Release) -> Choice:
        if keep <= 0:
            return Choice(release, False, "no release is pruned (sglang_keep_releases is 0)")
        if release.state == "half-removed":
            return Choice(release, True, "half-removed")
        if release.name in in_use:
            return Choice(release, False, in_use[release.name])
        if release.state == "half-made":
            return Choice(release, True, "half-made")
        if release.name in old:
            return Choice(release, True, f"older than the {keep} to keep")
        return Choice(release, False, f"among the {keep} to keep")

    order = ("half-removed", "half-made", "complete")
    return [judge(release) for release in sorted(releases, key=lambda release: order.index(release.state))]


def in_use(releases: Path) -> dict[str, str]:
    """Release -> why it must stay, whatever its age. Raises UnreadableError."""
    return installing(releases) | running(releases) | named(releases)


def named(releases: Path) -> dict[str, str]:
    """Release -> who names it: plans, those of the slots, and every service of the node with its drop-ins.

    However the path is written, also through links. Raises UnreadableError for a plan that cannot be read: what it
    names is then not known.
    """
    found = {}
    folders = _Folders(releases)
    plans = {
        path
        for slot in ("**", activations.GOOD, activations.PREVIOUS)
        for path in activations.FOLDER.glob(f"*/{slot}/{activations.PLAN}")
    }
    for path in sorted(plans):
        try:
            release = json.loads(path.read_text(encoding="utf-8"))["release_path"]
            if not os.path.isabs(release):
                raise ValueError(f"{release!r} is no absolute path")
            name = folders.holding(release)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise UnreadableError(
                Finding(
                    "prune.unreadable",
                    "warning",
                    f"{path} does not say which release it is of ({problem!r}), so no release can be removed",
                    "Remove the file, or run site.yml for that instance",
                )
            ) from problem
        if name:
            found[name] = f"named by {path}"
    for unit in _units():
        try:
            text = _text(unit)
        except OSError:  # a link that leads nowhere, or a folder: systemd reads nothing there either
            continue
        for written in _PATH.findall(text):
            if name := folders.holding(written):
                found.setdefault(name, f"named by {unit}")
    return found


def running(releases: Path, proc: Path = Path("/proc")) -> dict[str, str]:
    """Release -> a process that runs from it: its program, its command, or a library that it has mapped."""
    found: dict[str, str] = {}
    roots = b"|".join(re.escape(os.fsencode(root)) for root in _spellings(releases))
    pattern = re.compile(rb"(?:%s)/([^/\s\0]+)/" % roots)
    folders = _Folders(releases)
    for process in proc.iterdir():
        if process.name.isdigit():
            names = [os.fsdecode(name) for name in _traces(process, pattern)]
            with contextlib.suppress(OSError):
                written = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
                names += filter(None, (folders.holding(word) for word in written if os.path.isabs(word)))
            for name in names:
                found.setdefault(name, f"process {process.name} runs from it")
    return found


def installing(releases: Path) -> dict[str, str]:
    """Release -> that somebody installs into it now."""
    found = {}
    for path in releases.glob(".*.lock"):
        if not path.is_file():
            continue
        with path.open() as guard:
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found[path.name.removeprefix(".").removesuffix(".lock")] = "being installed"
    return found


class _Folders:
    """The folders below ``releases`` by what they are, not by how a path to them is written."""

    def __init__(self, releases: Path) -> None:
        self._names: dict[tuple[int, int], str] = {}
        self._known: dict[str, str] = {}
        for path in releases.iterdir() if releases.is_dir() else []:
            if _is_folder(path):
                status = path.stat()
                self._names[status.st_dev, status.st_ino] = path.name

    def holding(self, written: str) -> str:
        """Name of the folder that an absolute path is, or lies in; empty for none. Raises ValueError for a NUL."""
        if written.startswith(_KERNEL):
            return ""
        # Folder by folder, as written and as resolved: a file may be a link that leads out, as bin/python is.
        for path in (written, os.path.realpath(written)):
            for place in (Path(path), *Path(path).parents):
                if name := self._name(str(place)):
                    return name
        return ""

    def _name(self, path: str) -> str:
        if path not in self._known:
            self._known[path] = ""
            with contextlib.suppress(OSError):
                status = os.stat(path)
                self._known[path] = self._names.get((status.st_dev, status.st_ino), "")
        return self._known[path]


def _units() -> Iterator[Path]:
    """Every service of the node and its drop-ins, wherever systemd looks for them."""
    for folder in dict.fromkeys((health.UNIT_FOLDER, *(Path("/", name) for name in audit.FOLDERS))):
        for pattern in ("*.service", "*service.d/*.conf"):
            yield from sorted(folder.glob(pattern))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _spellings(releases: Path) -> list[str]:
    """The folder as it is written in plans, and as the kernel knows it."""
    return sorted({str(releases), os.path.realpath(releases)})


def _traces(process: Path, pattern: re.Pattern[bytes]) -> Iterator[bytes]:
    # Processes end while they are looked at.
    with contextlib.suppress(OSError):
        yield from pattern.findall(os.fsencode(os.readlink(process / "exe")))
    for name in ("cmdline", "maps"):
        with contextlib.suppress(OSError):
            yield from pattern.findall((process / name).read_bytes())


@dataclass(frozen=True)
class Places:
    """Where things lie that go with a release.

    ``cache``   uv's wheel cache
    ``others``  folders whose locks stay: the toolkits, which share wheels with releases
    ``beside``  folders that hold one folder a release, of its name
    """

    cache: Path
    others: tuple[Path, ...] = ()
    beside: tuple[Path, ...] = ()


def remove(release: Release, places: Places) -> int:
    """Remove a release and what goes with it; bytes that became free.

    The folder is renamed first, so that what is half-removed is never taken for complete; the lock goes last, as it
    tells which wheels to let go of. Killed in between, another call goes on from there. Raises FileExistsError, with
    nothing changed, where something lies at the name that it would get; OSError, also where the cache is in use: then
    all but the wheels is gone.
    """
    path = release.path
    if release.state != "half-removed":
        aside = path.with_name(f".{release.name}.removed")
        if os.path.lexists(aside) and not (_is_folder(aside) and not any(aside.iterdir())):
            raise FileExistsError(f"{aside} is in the way")
        path = path.rename(aside)
    freed = 0
    if not path.with_name(release.name).exists():  # or it was installed again meanwhile
        caches = _kernel_caches(release.name, path.parent)
        beside = (folder / release.name for folder in places.beside)
        freed += sum(_remove_tree(folder) for folder in (*caches, *beside) if _is_folder(folder))
    freed += sum(_remove_tree(entry) for entry in path.iterdir() if entry.name != wheels.LOCK)
    lock = path / wheels.LOCK
    if lock.is_file():
        stay = [_text(other) for other in _locks(path.parent, *places.others) if other != lock]
        freed += forget_wheels(places.cache, _text(lock), stay)
    return freed + _remove_tree(path)


def forget_wheels(cache: Path, lock: str, stay: Iterable[str]) -> int:
    """Remove from uv's cache the wheels of a lock that no other lock names and nothing is linked to; bytes freed.

    A wheel that another node uses, which shares the cache, has files with more than one link. uv 0.13.9 takes what is
    missing for not cached and fetches it again. Raises BlockingIOError while uv works with the cache.
    """
    if not (cache / ".lock").exists():
        return 0
    gone = set(wheels.pins(lock).items()).difference(*(wheels.pins(other).items() for other in stay))
    with (cache / ".lock").open("a") as guard:
        # uv holds it shared while it installs, exclusively while it cleans.
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unused = {
            pointer: wheel
            for wheel in sorted(gone)
            for pointer in _pointers(cache, *wheel)
            if not _is_linked(pointer.resolve())
        }
        _forget_markers(cache, set(unused.values()))
        for pointer in unused:
            archive = pointer.resolve()
            if archive.is_dir():
                # At once: in what is half-removed, uv would see a wheel. The rest of it, below, may be interrupted.
                archive.rename(archive.with_name(f"{archive.name}.removed"))
            for suffix in _RECORDS:
                pointer.with_name(pointer.name + suffix).unlink(missing_ok=True)
        return sum(_remove_tree(archive) for archive in cache.glob("archive-v*/*.removed"))


def _forget_markers(cache: Path, removed: set[tuple[str, str]]) -> None:
    """Remove what says that all wheels of a lock are cached, where some are not any more."""
    for marker in wheels.cache_marker(str(cache), "").parent.glob("*"):
        held = set(wheels.pins(marker.read_text()).items())
        # Markers of older versions of this collection are empty: nothing is known of theirs.
        if removed and (not held or held & removed):
            marker.unlink()


def _locks(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in folder.glob(f"*/{wheels.LOCK}") if path.is_file())


def _kernel_caches(name: str, releases: Path) -> Iterator[Path]:
    """Kernel caches of a release, one a toolkit; not those of another one whose name goes on after its own."""
    longer = tuple(f"{path.name}-" for path in releases.iterdir() if path.name.startswith(f"{name}-"))
    for cache in KERNEL_CACHES.glob(f"{glob.escape(name)}-*"):
        if not cache.name.startswith(longer):
            yield cache


def _pointers(cache: Path, name: str, version: str) -> Iterator[Path]:
    """uv's links to the unpacked wheels of a version, one a set of tags, for every index: its bucket wheels-v*."""
    for index in ("pypi", "index/*"):
        for pointer in cache.glob(f"wheels-v*/{index}/{name}/{version}-*"):
            if pointer.is_symlink() and pointer.resolve().match(f"{cache.resolve()}/archive-v*/*"):
                yield pointer


def _is_linked(archive: Path) -> bool:
    """Whether a file of an unpacked wheel is linked from somewhere else, too."""
    return any(entry.is_file() and not entry.is_symlink() and entry.stat().st_nlink > 1 for entry in archive.rglob("*"))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove_tree(path: Path) -> int:
    """Remove a file or a whole folder; bytes that become free, which is nothing for a file with other links."""
    freed = 0
    if not _is_folder(path):
        freed = _size(path)
        path.unlink(missing_ok=True)
        return freed
    for folder, _folders, files in os.walk(path):
        freed += sum(_size(Path(folder, name)) for name in files)
    shutil.rmtree(path)
    return freed


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return 0
    return status.st_blocks * 512 if status.st_nlink == 1 else 0
