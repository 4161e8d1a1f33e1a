# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters about apt, for roles."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.sglang.plugins.module_utils import drivers
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_text
from ansible_collections.inference.sglang.plugins.plugin_utils import apt_keys


def apt_key(key: str, folders: Sequence[str | None] = ()) -> str:
    """A key as module apt_source takes it; documented in apt_key.yml."""
    if not apt_keys.is_path(key):
        return key
    if wrong := apt_keys.judge(key, folders):
        raise AnsibleFilterError(as_text(wrong))
    path = next(place for place in apt_keys.places(key, folders) if apt_keys.is_file(place))
    try:
        return f"base64:{base64.b64encode(path.read_bytes()).decode()}"
    except OSError as error:
        raise AnsibleFilterError(f"cuda_repository_key: {path} cannot be read: {error.strerror}") from None


def driver_pin(branch: int, version: str = "", repository: str = "release l=NVIDIA CUDA") -> str:
    """Preferences for the driver; documented in driver_pin.yml."""
    return drivers.pin(int(branch), version, repository)


class FilterModule:
    """Found by Ansible as inference.sglang.<name>."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """The filters of this file."""
        return {"apt_key": apt_key, "driver_pin": driver_pin}
