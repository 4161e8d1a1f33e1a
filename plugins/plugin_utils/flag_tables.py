# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The flag tables that this collection ships, for plugins on the controller."""

from __future__ import annotations

import functools
from pathlib import Path

from ansible.errors import AnsibleError
from ansible_collections.inference.sglang.plugins.module_utils import releases
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_text
from ansible_collections.inference.sglang.plugins.module_utils.flag_history import History
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable

FOLDER = Path(__file__).parents[2] / "roles" / "sglang" / "files" / "flags"


@functools.cache
def history() -> History:
    """The tables of all releases, of those before the oldest that is installed too."""
    return History(
        {path.stem: FlagTable.from_json(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
    )


def load(version: str) -> FlagTable:
    """The flags of a release. Raises AnsibleError with the finding, which lists the releases, if it is not one."""
    unknown = releases.check(version)
    if unknown:
        raise AnsibleError(as_text(unknown))
    return history()[version]
