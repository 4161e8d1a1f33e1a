# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters that name releases and toolkits and give their locks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.sglang.plugins.module_utils import installs, patches, releases, wheels
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_text, errors
from ansible_collections.inference.sglang.plugins.plugin_utils import role_files


def release_lock(release: str, python: str) -> str:
    return role_files.lock(release, python)


def release_patches(chosen: Iterable[object], folders: Iterable[str | None] = ()) -> list[dict[str, Any]]:
    return _definitions(chosen, None, folders)


def release_name(release: str, python: str, chosen: Iterable[object] = (), folders: Iterable[str | None] = ()) -> str:
    lock = role_files.lock(release, python)
    patch_set = [patches.from_mapping(definition) for definition in _definitions(chosen, release, folders)]
    return installs.name(release, lock, patch_set)


def release_cuda(release: str) -> str:
    return _release(release).cuda


def release_flashinfer(release: str) -> str:
    return _release(release).flashinfer


def toolkit_lock(version: str) -> str:
    return role_files.toolkit_lock(version)


def toolkit_name(version: str, method: str = "wheels", home: str = "", package_version: str = "") -> str:
    if method == "wheels":
        return f"{version}-{wheels.digest(role_files.toolkit_lock(version))}"
    what = hashlib.sha256(home.encode()).hexdigest()[:8] if method == "existing" else package_version
    return "-".join(re.sub(r"[^\w.+]+", "-", part) for part in (version, method, what) if part)


def _definitions(chosen: Iterable[object], release: str | None, folders: Iterable[str | None]) -> list[dict[str, Any]]:
    definitions, findings = role_files.patch_definitions(chosen, release, folders)
    if wrong := errors(findings):
        raise ValueError(as_text(wrong))
    return definitions


def _release(version: str) -> releases.Release:
    if wrong := releases.check(version):
        raise ValueError(str(wrong[0]))
    return releases.RELEASES[version]


def _clear_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except ValueError as error:
            raise AnsibleFilterError(str(error)) from error

    return call


class FilterModule:
    """Found by Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        functions = (
            release_lock,
            release_patches,
            release_name,
            release_cuda,
            release_flashinfer,
            toolkit_lock,
            toolkit_name,
        )
        return {function.__name__: _clear_errors(function) for function in functions}
