# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a release's flag table, for roles/sglang/files/flags/<version>.json.

usage: make_flag_table.py SGLANG_DIR OUT    SGLANG_DIR is the package folder of an unpacked wheel (holds srt/)
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / ".collections"))

from ansible_collections.inference.sglang.plugins.module_utils.flag_sources import read_sources


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    table = read_sources(Path(sys.argv[1]))
    Path(sys.argv[2]).write_text(table.to_json(), encoding="utf-8")
    print(f"{len(table.flags)} flags, {len(table)} spellings")


if __name__ == "__main__":
    main()
