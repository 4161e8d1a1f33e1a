# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The shipped flag tables against the published sources: ``SGLANG_SOURCES`` names the folder of the sources.

That folder holds ``<version>/sglang``; nothing in it is changed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils.flag_sources import differences, read_sources
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable

SHIPPED = {path.stem: path for path in (Path(__file__).parents[2] / "roles/sglang/files/flags").glob("*.json")}


@pytest.fixture(scope="module")
def sources() -> Path:
    return Path(os.environ["SGLANG_SOURCES"])


def test_every_release_has_sources_and_a_table(sources: Path) -> None:
    assert {path.name for path in sources.iterdir() if (path / "sglang").is_dir()} == set(SHIPPED)


@pytest.mark.parametrize("version", sorted(SHIPPED))
def test_the_shipped_table_is_what_the_sources_say(sources: Path, version: str) -> None:
    read = read_sources(sources / version / "sglang")
    shipped = FlagTable.from_json(SHIPPED[version].read_text(encoding="utf-8"))
    assert differences(read, shipped) == []
    assert read.flags == shipped.flags
    # What sources cannot tell: an environment variable adds a choice, an enumeration gives them.
    assert {flag.name for flag in read.flags if flag.runtime} <= {"--sampling-backend", "--kv-canary-real-data"}
