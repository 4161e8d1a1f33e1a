#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: source_patch
short_description: Keep a patch of an installed Python file present or absent
description:
  - Changes one file of a release when it is byte for byte the known original, and proves the new behaviour by a probe.
  - A file that is neither the known original nor the known result is never written. The module fails and shows how the
    file differs from what is known of it.
  - The way back gives the original bytes.
  - The file is replaced by rename. Other hard links to it, such as those in a package cache, keep their content.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
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
      - The patch. The files in C(roles/sglang/files/patches) are examples. Every fault in it is named.
      - C(id), in lower-case letters, digits and single hyphens, and C(summary), what is right with the patch.
      - C(distribution), the name of the distribution that the file belongs to, any one of the release's.
      - C(file), its path inside O(site_packages).
      - C(releases), from SGLang release to the SHA-256 of the file C(before) and C(after). The keys are SGLang's
        releases for every distribution, as the lock of a release pins them all. Quote them.
      - C(edits), a list of replacements of C(old), which must occur exactly once, by C(new), which must occur
        exactly once in the result. They are made in this order and undone in the opposite one.
      - C(probe), Python source that exits 0 only when the behaviour is right. It is run isolated, with two
        arguments, the path of the file and the release. It should run the changed code with stand-ins. Importing
        the release would take long and need a GPU.
      - C(variants), for a change that is not the same text in all releases. A list of mappings, each with
        C(releases) of its own, and with C(file), C(edits) and C(probe) where those differ from the definition's.
      - C(fixed_in), the first release that has the change upstream. From there on the patch is not needed.
      - C(requires), a list of ids of patches without which this one is not enough, in the releases that those change.
        This module applies one patch and does not read it. The filter P(inference.sglang.release_name#filter) and
        M(inference.sglang.validate_settings) refuse a set in which a required patch is missing, one is given twice, or
        two change one file of the release.
      - C(upstream), a list of links, and C(notes), what a reader should know, such as cases that remain.
      - C(fixed_in), C(requires), C(upstream), C(notes) and C(variants) are optional.
    type: dict
    required: true
  site_packages:
    description: The folder in which the release's distributions are installed.
    type: path
    required: true
  release:
    description: The SGLang release that is installed there, a key of the definition's C(releases).
    type: str
    required: true
  python:
    description:
      - The interpreter that runs the probe, normally the one that belongs to O(site_packages).
      - Without it, no probe is run.
    type: path
  cache_path:
    description:
      - The wheel cache of uv, if there is one. A conflict is shown as the difference from the original, which is looked
        for there by its hash.
      - Without it, or where the original is not there, the file is compared with the texts of the edits.
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
    cache_path: /opt/sglang/cache

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
    - V(applied) or V(restored) when the file was changed, V(already) when it was as wanted.
    - V(not_needed) when the release has the change upstream.
    - V(conflict) when the file is neither the known original nor the known result, or the definition does not know the
      release. Nothing was written.
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
            # Judged by the core, which names every fault, also of a file that a user wrote.
            "definition": {"type": "dict", "required": True},
            "site_packages": {"type": "path", "required": True},
            "release": {"type": "str", "required": True},
            "python": {"type": "path"},
            "cache_path": {"type": "path"},
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
            cache=Path(arguments["cache_path"]) if arguments["cache_path"] else None,
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
