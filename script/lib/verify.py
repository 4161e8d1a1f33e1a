# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check a live cluster with the testinfra suite: ``script/verify INVENTORY``."""

from __future__ import annotations

import sys
from pathlib import Path

import nodes
from project import environment


def main(arguments: list[str]) -> None:
    """Run playbooks/verify.yml against the inventory."""
    if not arguments or not Path(arguments[0]).exists():
        raise SystemExit("usage: script/verify INVENTORY [argument of ansible-playbook…]; inventories/ has examples")
    nodes.playbook(environment("controller"), Path(arguments[0]).resolve(), "playbooks/verify.yml", *arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
