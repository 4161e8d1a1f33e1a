#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_instance
short_description: Have an instance run from its plan and its unit
description:
  - Every process carries the digest of the plan that it was started from. An instance that does not run, does not run
    from the wanted plan, or is older than its unit or its secrets is started from its unit, whatever interrupted the
    run that wrote them.
  - Makes systemd read the unit again, forgets earlier failures, and does not wait; M(inference.sglang.sglang_ready)
    does.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  digest:
    description: Digest of the wanted plan.
    type: str
    required: true
  secrets:
    description: File on the node that the plan takes its API key from. Not given where it has none.
    type: path
"""

EXAMPLES = r"""
- name: Have the instance run from its plan
  inference.sglang.sglang_instance:
    name: tiny
    digest: "{{ plan.digest }}"
"""

RETURN = r"""
active:
  description: The unit's ActiveState before.
  returned: success
  type: str
digest:
  description: Digest of the plan that the process was started from that ran before. Empty when none ran.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import health


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "secrets": {"type": "path", "no_log": False},
        },
        supports_check_mode=True,
    )
    name = module.params["name"]
    unit = health.unit_state(name)
    running = health.running_digest(unit.main_pid) if unit.main_pid else ""
    secrets = module.params["secrets"] or ""
    changed = not health.runs_from_its_unit(unit, module.params["digest"], health.unit_file(name), secrets)
    if changed and not module.check_mode:
        try:
            health.restart(name)
        except health.SystemdError as failure:
            module.fail_json(msg=str(failure))
    module.exit_json(changed=changed, active=unit.active, digest=running)


if __name__ == "__main__":
    main()
