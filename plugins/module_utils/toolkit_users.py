# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who uses a CUDA toolkit, and so keeps it from being removed; the caches that go with it."""

from __future__ import annotations

import glob
import json
import os
from pathlib import Path

from ansible_collections.inference.sglang.plugins.module_utils import activations, pruning
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding


def keeps(folder: Path) -> list[Finding]:
    """What uses the toolkit in ``folder``: plans, also those to go back to, services of the node, processes.

    A plan that cannot be read is a finding as well: it may name the toolkit.
    """
    found = [
        *_plans(folder),
        *(why for name, why in pruning.running(folder.parent).items() if name == folder.name),
    ]
    try:
        found += [why for name, why in pruning.named(folder.parent).items() if name == folder.name]
    except pruning.UnreadableError as problem:
        found.append(f"possibly {problem.args[0].seen}")
    if not found:
        return []
    seen = f"The CUDA toolkit {folder} is in use: {found[0]}"
    remedy = "Serve the instance with another toolkit twice, so that none goes back to this one, or remove the instance"
    return [Finding("toolkit.in_use", "error", seen, remedy, "plugins/module_utils/toolkit_users.py")]


def caches(name: str) -> list[Path]:
    """The kernel caches of a toolkit's folder of that name, one a release."""
    return sorted(pruning.KERNEL_CACHES.glob(f"*-{glob.escape(name)}"))


def _plans(folder: Path) -> list[str]:
    found = []
    inside = os.path.realpath(folder)
    for path in sorted(activations.FOLDER.glob(f"*/**/{activations.PLAN}")):
        try:
            home = json.loads(path.read_text(encoding="utf-8"))["cuda_home"]
            uses = Path(os.path.realpath(home)).is_relative_to(inside)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            found.append(f"{path} does not say which toolkit it is of")
        else:
            if uses:
                found.append(f"named by {path}")
    return found
