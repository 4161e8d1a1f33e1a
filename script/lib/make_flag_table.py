# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the flag tables of releases, roles/sglang/files/flags/<version>.json, from their sources.

usage: make_flag_table.py [VERSION...]    without a version: of every release; the wheels are fetched where they lack
"""

from __future__ import annotations

import sys

import sources
from ansible_collections.inference.sglang.plugins.module_utils.flag_sources import read_sources
from project import ROOT

TABLES = ROOT / "roles" / "sglang" / "files" / "flags"


def main(versions: list[str]) -> None:
    """Write the tables of these versions, or of all; one line each."""
    if unknown := [version for version in versions if version not in sources.VERSIONS]:
        raise SystemExit(f"{', '.join(unknown)}: give it a row in plugins/module_utils/releases.py and a lock first")
    folder = sources.fetch()
    for version in versions or sources.VERSIONS:
        table = read_sources(folder / version / "sglang")
        (TABLES / f"{version}.json").write_text(table.to_json(), encoding="utf-8")
        print(f"{version}: {len(table.flags)} flags, {len(table)} spellings", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
