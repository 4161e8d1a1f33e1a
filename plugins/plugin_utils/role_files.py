# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The data that roles carry, read on the controller: locks and patch definitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.inference.sglang.plugins.module_utils import findings, patches, releases

_ROLES = Path(__file__).resolve().parents[2] / "roles"


def lock(release: str, python: str) -> str:
    """Text of a release's lock for a Python minor version; ValueError says which ones there are."""
    if wrong := releases.check(release, python):
        raise ValueError(findings.as_text(wrong))
    return (_ROLES / "sglang" / "files" / "locks" / f"{release}-py{python}.txt").read_text(encoding="utf-8")


def toolkit_lock(version: str) -> str:
    """Text of a CUDA toolkit's lock; ValueError says which versions there are."""
    if version not in releases.TOOLKITS:
        raise ValueError(
            f"CUDA {version} has no lock. Set cuda_toolkit_version to one of: {', '.join(releases.TOOLKITS)}"
        )
    return (_ROLES / "cuda_toolkit" / "files" / "locks" / f"{version}.txt").read_text(encoding="utf-8")


def patch_definitions(chosen: Iterable[str | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The definitions of patches given by the id of a shipped one, or as a definition of the user's own."""
    shipped = {path.stem: path for path in (_ROLES / "sglang" / "files" / "patches").glob("*.yml")}
    definitions = []
    for patch in chosen:
        if isinstance(patch, Mapping):
            definitions.append(dict(patch))
            continue
        if patch not in shipped:
            known = ", ".join(sorted(shipped))
            raise ValueError(f"There is no patch {patch}. Use one of: {known}, or write the definition itself")
        definitions.append(yaml.safe_load(shipped[patch].read_text(encoding="utf-8")))
    for definition in definitions:
        patches.from_mapping(definition)
    return definitions
