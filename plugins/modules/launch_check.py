#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_check
short_description: Check that an instance would start, before anything is stopped
description:
  - As the service user and in exactly the unit's environment, looks for the programs that compile kernels, reads the
    model's files and gives the flags to the release's own parser, which gets a stand-in for the API key.
  - A plan that was checked before (its digest is in O(checked)) is not checked again. In check mode, a release or model
    that is not there yet cannot be checked.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  plan:
    description: The plan, from M(inference.sglang.serving_plan).
    type: dict
    required: true
  checked:
    description: The file of the plan that was checked last.
    type: path
    required: true
  check_script:
    description: Python source of the check.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Check that the instance would start
  inference.sglang.launch_check:
    plan: "{{ plan }}"
    checked: /etc/sglang/tiny/plan.json
    check_script: "{{ lookup('ansible.builtin.file', 'check_launch.py') }}"
"""

RETURN = r"""
checked:
  description: Whether the check was run.
  returned: success
  type: bool
"""

import json
import pwd
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import wheels
from ansible_collections.inference.sglang.plugins.module_utils.plan import as_user
from ansible_collections.inference.sglang.plugins.module_utils.units import SEARCH_PATH


def last_checked(path: str) -> str:
    """Digest of the plan in a file; empty when there is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def words(plan: dict) -> list[str]:
    """The plan's arguments. SGLang judges whether there is a key; the file of the real one may not be there yet."""
    arguments = [[str(word) for word in argument] for argument in plan["arguments"]]
    if plan.get("secrets"):
        key_file = ["--config", plan["secrets"]]
        arguments = [["--api-key", "stand-in"] if argument == key_file else argument for argument in arguments]
    return [word for argument in arguments for word in argument]


def environment(plan: dict) -> list[str]:
    """What systemd gives a unit of its own, and the unit's."""
    given = {"LANG": "C.UTF-8", "PATH": SEARCH_PATH, "USER": plan["user"], "LOGNAME": plan["user"]}
    return [f"{name}={value}" for name, value in (given | plan["environment"]).items()]


def main():
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "checked": {"type": "path", "required": True},
            "check_script": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    plan = module.params["plan"]
    if last_checked(module.params["checked"]) == plan["digest"]:
        module.exit_json(changed=False, checked=False)
    release = wheels.read_manifest(plan["release_path"])
    known = plan["user"] in {entry.pw_name for entry in pwd.getpwall()}
    if module.check_mode and (release is None or not known or not Path(plan["model_path"]).exists()):
        module.exit_json(changed=False, checked=False)
    if release is None:
        module.fail_json(msg=f"No complete release lies in {plan['release_path']}: run the sglang role first")
    python = ["env", "--ignore-environment", *environment(plan), plan["command"][0]]
    status, output, error = module.run_command(
        [*as_user(plan["user"]), *python, "-", plan["model_path"], *words(plan)],
        expand_user_and_vars=False,
        data=module.params["check_script"],
        cwd="/",
    )
    if status != 0:
        reason = output.strip() or error.strip()[-2000:]
        module.fail_json(msg=f"{plan['name']} would not start, so nothing was stopped:\n{reason}")
    module.exit_json(changed=False, checked=True)


if __name__ == "__main__":
    main()
