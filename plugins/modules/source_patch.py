#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: source_patch
short_description: Keep a patch of an installed Python file present or absent
description:
  - Changes one file of an installed distribution when it is byte for byte the known original.
  - Proves the new behaviour by a probe.
  - A file that is neither the known original nor the known result is never written.
    The module fails and says what it found.
  - The way back gives the original bytes.
  - The file is replaced by rename. Other hard links to it, such as those in a package cache, keep their content.
author:
  - The inference.sglang contributors (@inference-sglang)
attributes:
  check_mode:
    description: Says what would be done, writes nothing and runs no probe.
    support: full
  diff_mode:
    description: Returns the text of the file before and after, also in C(check_mode).
    support: full
  idempotent:
    description: A second run with the same arguments changes nothing.
    support: full
options:
  definition:
    description:
      - The patch, with the keys C(id), C(summary), C(distribution), C(file), C(releases), C(edits) and C(probe).
      - C(upstream), C(fixed_in) and C(notes) are optional.
      - C(file) is a path inside O(site_packages).
      - C(releases) maps a version to the SHA-256 of the file C(before) and C(after).
      - C(edits) is a list of replacements of C(old), which must occur exactly once, by C(new).
      - C(probe) is Python source that gets the path of the file as its argument.
      - It exits 0 only when the behaviour is right.
      - The files in C(roles/sglang/files/patches) are examples.
    type: dict
    required: true
  site_packages:
    description: The folder in which the distribution is installed.
    type: path
    required: true
  release:
    description: The installed version of the distribution.
    type: str
    required: true
  python:
    description:
      - The interpreter that runs the probe, normally the one that belongs to O(site_packages).
      - Without it, no probe is run.
    type: path
  state:
    description:
      - With V(present), the file is patched and then probed. If the probe fails, the original file is put back
        and the module fails.
      - A file that is patched already is probed too. If that fails, the module fails and leaves the file.
      - With V(absent), the file gets its original bytes.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Apply the layer probe patch
  inference.sglang.source_patch:
    definition: "{{ lookup('ansible.builtin.file', 'patches/triton-layer-probe.yml') | from_yaml }}"
    site_packages: /opt/sglang/releases/example/lib/python3.11/site-packages
    release: 0.5.12.post1
    python: /opt/sglang/releases/example/bin/python

- name: Put the original file back
  inference.sglang.source_patch:
    definition: "{{ lookup('ansible.builtin.file', 'patches/triton-layer-probe.yml') | from_yaml }}"
    site_packages: /opt/sglang/releases/example/lib/python3.11/site-packages
    release: 0.5.12.post1
    state: absent
"""

RETURN = r"""
outcome:
  description:
    - V(applied), V(restored) or V(already) in the wanted state.
    - V(not_needed) when the release has the change upstream.
    - V(conflict) when nothing could be written.
    - V(probe_failed) when the behaviour is not right.
  returned: when the definition is valid
  type: str
  sample: applied
file:
  description: Full path of the file.
  returned: when the definition is valid
  type: str
  sample: /opt/sglang/releases/example/lib/python3.11/site-packages/sglang/srt/layers/attention/triton_backend.py
sha256:
  description: SHA-256 of the file at the end, in check mode the one that it would have. Empty when there is no file.
  returned: when the definition is valid
  type: str
  sample: ef13953c075d8d7913a2a223cd52e5dddcb5061d0adf4958327297a71e61482c
findings:
  description: What is wrong or worth knowing.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Stable name of the finding.
      type: str
      sample: patch.file_changed
    severity:
      description: One of V(error), V(warning) and V(info).
      type: str
      sample: error
    seen:
      description: What was read.
      type: str
    remedy:
      description: What to do.
      type: str
    source:
      description: Where the judgement comes from. May be empty.
      type: str
probe:
  description: Result of the probe.
  returned: when the probe was run
  type: dict
  contains:
    rc:
      description: Exit status. 124 when the probe ran past its limit of 300 seconds, 127 when it could not be started.
      type: int
      sample: 0
    output:
      description: The last 2000 characters of its output.
      type: str
      sample: "v_head_dim 512"
"""

from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import patches
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_dicts, as_text, errors


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "definition": {"type": "dict", "required": True},
            "site_packages": {"type": "path", "required": True},
            "release": {"type": "str", "required": True},
            "python": {"type": "path"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    arguments = module.params
    try:
        report = patches.converge(
            patches.from_mapping(arguments["definition"]),
            Path(arguments["site_packages"]),
            arguments["release"],
            arguments["state"],
            python=Path(arguments["python"]) if arguments["python"] else None,
            check=module.check_mode,
        )
    except patches.DefinitionError as error:
        module.fail_json(msg=str(error), findings=as_dicts(error.findings))
    except OSError as error:
        module.fail_json(msg=f"The file could not be read or replaced: {error}", findings=[])
    result = {
        "changed": report.changed,
        "outcome": report.name,
        "file": str(report.path),
        "sha256": report.sha256,
        "findings": as_dicts(report.findings),
    }
    if report.probe is not None:
        result["probe"] = asdict(report.probe)
    if errors(report.findings):
        module.fail_json(msg=as_text(report.findings), **result)
    if module._diff:
        headers = {"before_header": result["file"], "after_header": result["file"]}
        result["diff"] = {**headers, **report.outcome.diff}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
