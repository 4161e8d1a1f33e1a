#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_prune
short_description: Remove old releases, with their kernel caches and their wheels
description:
  - Removes release folders that were never completed, then the oldest ones until O(keep) are left.
  - A release that a plan of an instance names, also a plan in C(good) or C(previous), one that any service of the node
    names, one that a process runs from, and one that is being installed always stay, however its path is written. Those
    count, so that more than O(keep) may be left.
  - With a release go its kernel caches below C(/var/cache/sglang) and those of its wheels in uv's cache that no lock of
    this node names any more and nothing is linked to. Files of a release are hard links into that cache, so only that
    frees their space.
  - Folders that were not made by M(inference.sglang.sglang_release) are not touched. A release of another name than the
    role gives is taken for one only once it is complete.
  - Where it cannot be told what must stay, a warning says so, and nothing is removed.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  releases_path:
    description: Folder of the releases.
    type: path
    required: true
  cache_path:
    description: The wheel cache of uv.
    type: path
    required: true
  keep:
    description: How many complete releases are left at least. V(0) removes none, and nothing else either.
    type: int
    required: true
  others:
    description: Folders of other things that were installed from locks, whose wheels stay.
    type: list
    elements: path
    default: []
  beside:
    description: Folders that hold one folder a release, of the release's name, which goes with it.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: Keep three releases
  inference.sglang.sglang_prune:
    releases_path: /opt/sglang/releases
    cache_path: /opt/sglang/cache
    others:
      - /opt/sglang/toolkits
    keep: 3
"""

RETURN = r"""
removed:
  description: What was removed, or would be in check mode, by C(name) and C(why).
  returned: success
  type: list
  elements: dict
  sample: [{"name": "0.5.11-0a1b2c3d-none", "why": "older than the 3 to keep"}]
kept:
  description: What was left, by C(name) and C(why).
  returned: success
  type: list
  elements: dict
freed_mb:
  description: Space that became free, MB (10^6 bytes). 0 in check mode.
  returned: success
  type: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import pruning, wheels
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding


def main():
    module = AnsibleModule(
        argument_spec={
            "releases_path": {"type": "path", "required": True},
            "cache_path": {"type": "path", "required": True},
            "keep": {"type": "int", "required": True},
            "others": {"type": "list", "elements": "path", "default": []},
            "beside": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    releases, keep = Path(module.params["releases_path"]), module.params["keep"]
    places = pruning.Places(
        Path(module.params["cache_path"]),
        tuple(map(Path, module.params["others"])),
        tuple(map(Path, module.params["beside"])),
    )
    result = {"changed": False, "removed": [], "kept": [], "freed_mb": 0}
    try:
        choices = pruning.choose(pruning.survey(releases), keep, pruning.in_use(releases))
    except pruning.UnreadableError as problem:
        module.warn(str(problem))
        module.exit_json(**result)
    except (OSError, ValueError, RecursionError) as problem:
        seen = f"What must stay of {releases} cannot be told ({problem!r}), so no release can be removed"
        module.warn(str(Finding("prune.unreadable", "warning", seen, "Correct or remove the file that it names")))
        module.exit_json(**result)
    freed = 0
    for choice in choices:
        told = {"name": choice.release.name, "why": choice.why}
        if not choice.remove:
            result["kept"].append(told)
            continue
        try:
            if not module.check_mode:
                with wheels.alone(str(releases / choice.release.name), wait=False) as alone:
                    if not alone:
                        result["kept"].append(told | {"why": "being installed"})
                        continue
                    freed += pruning.remove(choice.release, places)
        except BlockingIOError:
            result["kept"].append(told | {"why": "half-removed: uv works with its cache; the next run goes on"})
        except FileExistsError as obstacle:
            result["kept"].append(told | {"why": str(obstacle)})
            continue
        except OSError as failure:
            module.fail_json(msg=f"{choice.release.name} cannot be removed: {failure}", **result)
        else:
            result["removed"].append(told)
        result["changed"] = True
    result["freed_mb"] = freed // 10**6
    module.exit_json(**result)


if __name__ == "__main__":
    main()
