# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The version of uv is written down in three places that must agree."""

from __future__ import annotations

from pathlib import Path

import yaml
from ansible_collections.inference.sglang.plugins.module_utils import releases, wheels

ROLE = Path(__file__).parents[2] / "roles" / "uv"


def test_folder_lock_and_table_name_the_same_uv() -> None:
    assert wheels.pins((ROLE / "files" / "uv.txt").read_text()) == {"uv": releases.UV}
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    assert defaults["uv_path"].endswith(f"/{releases.UV}")
