# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The flag tables that this collection ships, for plugins on the controller."""

from __future__ import annotations

from pathlib import Path

from ansible.errors import AnsibleError
from ansible_collections.inference.sglang.plugins.module_utils import releases
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_text
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable

FOLDER = Path(__file__).parents[2] / "roles" / "sglang" / "files" / "flags"


def load(version: str) -> FlagTable:
    """The flags of a release. Raises AnsibleError with the finding, which lists the releases, if it is not one."""
    unknown = releases.check(version)
    if unknown:
        raise AnsibleError(as_text(unknown))
    return FlagTable.from_json((FOLDER / f"{version}.json").read_text(encoding="utf-8"))
