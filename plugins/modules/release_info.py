#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: release_info
short_description: Report which SGLang releases are installed, and in what state
description:
  - Reads the release folders of a node. Tells what each holds, whether it is complete, whether its patched files are
    still as its installation left them, what is known not to work in it, and which instances run from it.
  - Changes nothing.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes.info
options:
  releases_path:
    description: The folder whose sub-folders are releases.
    type: path
  path:
    description: The folder of one release.
    type: path
  flags:
    description: Whether to report every flag of each release, read from its sources.
    type: bool
    default: false
  size:
    description: Whether to measure each folder, which reads some ten thousand directory entries.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Read which releases are installed
  inference.sglang.release_info:
    releases_path: /opt/sglang/releases
  register: installed

- name: Show those whose patched files someone has changed
  ansible.builtin.debug:
    msg: "{{ installed.releases | selectattr('findings', 'ne', []) | map(attribute='path') }}"
"""

RETURN = r"""
releases:
  description: One entry a folder, by name. Empty where O(releases_path) is no folder.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The release's folder.
      type: str
    complete:
      description: Whether its manifest is there, which is the last that an installation writes, and can be read.
      type: bool
    version:
      description: The SGLang version. By the folder's name where the release is not complete.
      type: str
    python:
      description: Minor version of its interpreter. Empty where the release is not complete.
      type: str
    lock:
      description: Digest of its lock. Empty where the release is not complete.
      type: str
    torch_cuda:
      description: The CUDA version that its PyTorch is built for. Empty where the release is not complete.
      type: str
    flags:
      description: Number of flag spellings that its parser knows.
      type: int
    patches:
      description: One entry a patch.
      type: list
      elements: dict
      contains:
        id:
          description: The patch's id.
          type: str
        outcome:
          description: What the installation did, such as V(applied).
          type: str
        file:
          description: The file that it changes.
          type: str
        state:
          description:
            - V(intact) where the file is as the installation left it, V(changed) or V(missing) where it is not, and
              V(not_needed) where the release has the change of its own.
          type: str
    known_faults:
      description: What does not work in the release and no patch mends, on its Python.
      type: list
      elements: dict
      contains:
        id:
          description: Short name.
          type: str
        seen:
          description: What happens.
          type: str
        remedy:
          description: What to do.
          type: str
        source:
          description: Where it is known from.
          type: str
        python:
          description: The one Python minor version that it is so on. Empty where the Python does not matter.
          type: str
        flag:
          description: The flag that meets it. Empty where no flag tells.
          type: str
        value:
          description: The flag's value that meets it.
          type: str
    instances:
      description:
        - Names of the instances whose plan runs from the release, or that would go back to it, by their plan in C(good)
          or C(previous).
      type: list
      elements: str
    findings:
      description: What is wrong with the folder, each with C(id), C(severity), C(seen), C(remedy) and C(source).
      type: list
      elements: dict
    flag_table:
      description:
        - Every flag, with C(name) and, where they differ from their defaults, C(aliases), C(kind), C(type), C(choices),
          C(default), C(deprecated), C(replacement), C(refused), C(hidden), C(bare) and C(runtime).
        - Empty where there are no sources that can be read; the finding V(release.flags) says why.
      returned: when O(flags) is true
      type: list
      elements: dict
    size_mb:
      description: Size on disk, MB of 10⁶ bytes. Files that are hard links to the wheel cache count in full.
      returned: when O(size) is true
      type: int
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import activations, installed
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_dicts


def flag_table(folder: Path, findings: list[dict[str, str]]) -> list[dict]:
    """The release's flags as its table's JSON has them; a finding where they cannot be read."""
    try:
        return json.loads(installed.flag_table(folder).to_json())
    except (OSError, ValueError, SyntaxError, RecursionError) as failure:
        finding = Finding("release.flags", "warning", f"The flags cannot be read: {failure}", "Complete the release")
        findings += as_dicts([finding])
        return []


def main():
    module = AnsibleModule(
        argument_spec={
            "releases_path": {"type": "path"},
            "path": {"type": "path"},
            "flags": {"type": "bool", "default": False},
            "size": {"type": "bool", "default": False},
        },
        mutually_exclusive=[("releases_path", "path")],
        required_one_of=[("releases_path", "path")],
        supports_check_mode=True,
    )
    given = module.params
    if given["path"] and not Path(given["path"]).is_dir():
        module.fail_json(msg=f"{given['path']} is no folder")
    folders = [Path(given["path"])] if given["path"] else list(installed.folders(Path(given["releases_path"])))
    releases = []
    for folder in folders:
        release = installed.describe(folder, activations.FOLDER)
        if given["flags"]:
            release["flag_table"] = flag_table(folder, release["findings"])
        if given["size"]:
            release["size_mb"] = installed.megabytes(folder)
        releases.append(release)
    module.exit_json(changed=False, releases=releases)


if __name__ == "__main__":
    main()
