# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The files of apt that make one owner of a repository: what they are to hold, writing them, and the way back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.inference.sglang.plugins.module_utils import apt
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

SOURCES = "/etc/apt/sources.list"
SOURCES_FOLDER = "/etc/apt/sources.list.d"
PREFERENCES_FOLDER = "/etc/apt/preferences.d"
OWN = (apt.SOURCE, apt.KEYRING, apt.PREFERENCES, apt.PROXY)


@dataclass
class Plan:
    """What files are to hold.

    ``files``     content by path; None for a file that is to go. What is right already is not in it
    ``disabled``  lines of others that name the repository, by file, without passwords; for ``restore`` the files that
                  come back
    """

    files: dict[str, bytes | None] = field(default_factory=dict)
    disabled: dict[str, tuple[str, ...]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def read(path: str, root: Path = Path("/")) -> bytes | None:
    """The content of a file; None where there is none."""
    try:
        return (root / path.lstrip("/")).read_bytes()
    except FileNotFoundError:
        return None


def own(
    repository: apt.Repository, key: bytes | None, preferences: str, proxy: str = "", root: Path = Path("/")
) -> Plan:
    """Make the repository ours alone.

    ``key``          the packets of its key; None leaves the key that is there
    ``preferences``  text of its file of preferences
    ``proxy``        URL of a proxy for it alone
    """
    plan = Plan()
    wanted: dict[str, bytes | None] = {
        apt.SOURCE: repository.source().encode(),
        apt.PREFERENCES: preferences.encode(),
        apt.PROXY: repository.proxy(proxy).encode() or None,
    }
    if key is not None:
        wanted[apt.KEYRING] = key
    for path, text in _texts(root, SOURCES_FOLDER, (".list", ".sources")).items():
        cleared = apt.clear(path, text, repository)
        if cleared.found:
            left = _left(path, text, repository)
            plan.disabled[path] = _told(cleared.found)
            wanted[path + apt.DISABLED] = _encoded(text)
            wanted[path] = None if left is None else _encoded(left)
    for path, text in _texts(root, PREFERENCES_FOLDER, (".pref", "")).items():
        if apt.pins_repository(path.rpartition("/")[2], text):
            plan.disabled[path] = _told(text.splitlines())
            wanted[path + apt.DISABLED] = _encoded(text)
            wanted[path] = None
    plan.files = {path: content for path, content in wanted.items() if read(path, root) != content}
    return plan


def restore(root: Path = Path("/")) -> Plan:
    """The way back: our files go, and the files of others stand as they stood, byte for byte.

    What was kept goes when its file stands again, and our source, which tells what was taken out of the others, at the
    very end: a run that is killed is completed by the next.
    """
    plan = Plan()
    repository = owned(root)
    for path in _names(root, (SOURCES, SOURCES_FOLDER, PREFERENCES_FOLDER)):
        name = path.removesuffix(apt.DISABLED)
        if name == path:
            continue
        kept, now = read(path, root) or b"", read(name, root)
        if now is not None and now != kept:
            left = None if repository is None else _left(name, _decoded(kept), repository)
            if left is None or now != _encoded(left):
                seen = f"{name} was changed after its entries were disabled"
                remedy = f"Put back by hand what you need of {path}, and remove that file"
                plan.findings.append(Finding("apt.changed_since", "warning", seen, remedy))
                continue
        plan.files[name] = kept
        plan.files[path] = None
        plan.disabled[name] = _told(_decoded(kept).splitlines())
    plan.files |= {path: None for path in reversed(OWN) if read(path, root) is not None}
    return plan


def owned(root: Path = Path("/")) -> apt.Repository | None:
    """The repository that our source names; None where there is none."""
    found = apt.entries(apt.SOURCE, _decoded(read(apt.SOURCE, root) or b""))
    if not found or not found[0].suites:
        return None
    return apt.Repository(found[0].uris[0], found[0].suites[0], found[0].components)


def write(files: Mapping[str, bytes | None], root: Path = Path("/")) -> dict[str, bytes | None]:
    """Write, each file by a rename, in their order; give what they held, so that writing that undoes it, backwards."""
    before = {path: read(path, root) for path in files}
    for path, content in files.items():
        target = root / path.lstrip("/")
        if content is None:
            target.unlink(missing_ok=True)
            continue
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.chmod(name, _mode(path, target, content))
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    return dict(reversed(before.items()))


def diff(files: Mapping[str, bytes | None], root: Path = Path("/")) -> list[dict[str, str]]:
    """Before and after, a file each. A key is shown by its fingerprint, a password not at all."""
    return [
        {
            "before_header": path,
            "after_header": path,
            "before": _shown(path, read(path, root)),
            "after": _shown(path, content),
        }
        for path, content in sorted(files.items())
    ]


def _left(name: str, text: str, repository: apt.Repository) -> str | None:
    """What ``own`` leaves of a file of sources; None for nothing. The main file always stays."""
    left = apt.clear(name, text, repository).text
    if left is None and name == SOURCES:
        return "".join(f"# {line}\n" for line in text.splitlines())
    return left


def _mode(path: str, target: Path, content: bytes) -> int:
    """That of the file; of one that is set aside, or comes back, that of the other name: a URL may hold a password."""
    if path == apt.PROXY and b"@" in content:
        return 0o600
    if path in OWN:
        return 0o644
    first = target.with_name(target.name.removesuffix(apt.DISABLED))
    there = (first, target.with_name(first.name + apt.DISABLED))
    return next((file.stat().st_mode & 0o7777 for file in there if file.exists()), 0o644)


def _shown(path: str, content: bytes | None) -> str:
    if content is None:
        return ""
    if path == apt.KEYRING:
        try:
            return "".join(f"{key.fingerprint}\n" for key in apt.keys(content))
        except ValueError:
            return "unreadable\n"
    text = _decoded(content)
    return "a proxy with a password\n" if path == apt.PROXY and "@" in text else apt.bare(text)


def _told(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(apt.bare, lines))


def _names(root: Path, places: tuple[str, ...]) -> list[str]:
    """Files in these folders, and files whose names begin with those that are none."""
    found = []
    for place in places:
        path = root / place.lstrip("/")
        candidates = path.iterdir() if path.is_dir() else path.parent.glob(f"{path.name}*")
        found += [f"/{candidate.relative_to(root)}" for candidate in candidates if candidate.is_file()]
    return sorted(found)


def _texts(root: Path, folder: str, endings: tuple[str, ...]) -> dict[str, str]:
    """The files that apt reads in a folder, and the one beside it, but ours."""
    names = [path for path in _names(root, (folder,)) if os.path.splitext(path)[1] in endings]
    if folder == SOURCES_FOLDER:
        names.insert(0, SOURCES)
    read_ones = {path: read(path, root) for path in names if path not in OWN}
    return {path: _decoded(content) for path, content in read_ones.items() if content is not None}


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", errors="surrogateescape")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogateescape")
