# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The key of an apt repository as it is given on the controller: text, URL, or the path of a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ansible_collections.inference.sglang.plugins.module_utils import apt
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding


def is_path(key: str) -> bool:
    """Whether a key is given by the path of its file."""
    return bool(key.strip()) and "-----BEGIN" not in key and not key.startswith("base64:") and not apt.is_url(key)


def places(key: str, folders: Iterable[str | None]) -> list[Path]:
    """Where the file of a path is looked for, in this order."""
    return list(dict.fromkeys(Path(folder) / key for folder in folders if folder)) or [Path(key)]


def judge(key: str, folders: Iterable[str | None]) -> list[Finding]:
    """Whether a key can be taken to the nodes. What it holds is judged with its fingerprints there."""
    found = apt.key_given(key)
    looked = places(key, folders) if is_path(key) else []
    if looked and not any(is_file(place) for place in looked):
        seen = f"cuda_repository_key: there is no file {' or '.join(map(str, looked))}"
        remedy = "Put it below the folder of the inventory, or give its full path or its https URL"
        found.append(Finding("apt_key.missing", "error", seen, remedy, "roles/cuda_repository/README.md"))
    return found


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
