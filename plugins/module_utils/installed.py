# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What release folders hold now: read from their manifests and files, nothing changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ansible_collections.inference.sglang.plugins.module_utils import activations, flag_sources, wheels
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable
from ansible_collections.inference.sglang.plugins.module_utils.releases import RELEASES

PatchState = Literal["intact", "changed", "missing", "not_needed"]

_TEXTS = ("version", "python", "lock", "torch_cuda")
_AGAIN = "Run the role sglang for this release again, which completes it, or remove the folder"


@dataclass(frozen=True)
class InstalledPatch:
    """A patch of a release.

    ``outcome``  what its installation did (``patches`` room)
    ``state``    ``intact``: the file is as the installation left it; ``changed`` and ``missing``: it is not;
                 ``not_needed``: the release has the change of its own
    """

    id: str
    outcome: str
    file: str
    state: PatchState


def folders(releases_path: Path) -> Iterator[Path]:
    """The release folders below ``releases_path``, complete or not, by name; none where there is no such folder."""
    if releases_path.is_dir():
        yield from sorted(path for path in releases_path.iterdir() if path.is_dir() and not path.name.startswith("."))


def describe(folder: Path, plans: Path) -> dict[str, Any]:
    """What a release folder holds, with the findings on it; ``release_info`` documents the keys.

    ``plans``  where the instances' folders lie (``/etc/sglang``)
    """
    manifest = _manifest(folder)
    findings = [] if manifest is not None else [_unfinished(folder)]
    held = manifest or {"version": folder.name.partition("-")[0]}
    texts = {name: str(held.get(name) or "") for name in _TEXTS}
    entries = held.get("patches")
    patches = [_patch(entry) for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    findings += [_touched(patch) for patch in patches if patch.state in ("changed", "missing")]
    release = RELEASES.get(texts["version"])
    faults = release.known_faults if release else ()
    return {
        "path": str(folder),
        "complete": manifest is not None,
        **texts,
        "flags": _count(held.get("flags")),
        "patches": [asdict(patch) for patch in patches],
        "known_faults": [asdict(fault) for fault in faults if fault.python in ("", texts["python"])],
        "instances": instances(folder, plans),
        "findings": [asdict(finding) for finding in findings],
    }


def instances(folder: Path, plans: Path) -> list[str]:
    """Names of the instances that run from a release folder, or would go back to it, however the path is written."""
    found = set()
    for slot in ("", activations.GOOD, activations.PREVIOUS):
        for instance in plans.glob("*"):
            release = _release_of(instance / slot / activations.PLAN)
            if release is not None and _same(release, folder):
                found.add(instance.name)
    return sorted(found)


def flag_table(folder: Path) -> FlagTable:
    """The flags of the release in a folder, read from its sources.

    Raises OSError, ValueError, SyntaxError or RecursionError where it has none that can be read.
    """
    found = next(folder.glob("lib/python*/site-packages/sglang"), None)
    if found is None:
        raise FileNotFoundError(f"There is no SGLang in {folder}")
    return flag_sources.read_sources(found)


def megabytes(folder: Path) -> int:
    """Size of a folder in MB of 10⁶ bytes; files that are hard links to a wheel cache count in full, and once each."""
    sizes = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return round(sum(sizes.values()) / 1e6)


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        return wheels.read_manifest(str(folder))
    except (OSError, RecursionError):
        return None


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def _count(flags: object) -> int:
    return flags if isinstance(flags, int) else 0


def _unfinished(folder: Path) -> Finding:
    if (folder / wheels.MANIFEST).exists():
        seen = f"{folder}/{wheels.MANIFEST} cannot be read as a manifest, so nobody can say what the folder holds"
        return Finding("release.manifest", "warning", seen, _AGAIN)
    seen = f"{folder} has no manifest: its installation was interrupted or is going on"
    return Finding("release.incomplete", "warning", seen, _AGAIN)


def _patch(entry: Mapping[str, Any]) -> InstalledPatch:
    identity, outcome, file = (str(entry.get(name, "")) for name in ("id", "outcome", "file"))
    if outcome == "not_needed":
        state: PatchState = "not_needed"
    else:
        try:
            held = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            state = "intact" if held == entry.get("sha256") else "changed"
        except (OSError, ValueError):  # the latter for a NUL in the name
            state = "missing"
    return InstalledPatch(identity, outcome, file, state)


def _touched(patch: InstalledPatch) -> Finding:
    seen = f"{patch.file}, which patch {patch.id} made, is {patch.state} since the installation"
    return Finding(
        "release.patch_touched", "warning", seen, "Remove the release's folder and run the role sglang again"
    )


def _release_of(plan: Path) -> Path | None:
    try:
        content = json.loads(plan.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    path = content.get("release_path") if isinstance(content, dict) else None
    return Path(path) if isinstance(path, str) else None
