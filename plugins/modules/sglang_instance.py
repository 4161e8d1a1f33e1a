#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_instance
short_description: Compare a running instance with its plan, or restart it
description:
  - Every process carries the digest of the plan that it was started from. V(compared) reports changed when the instance
    does not run from the wanted plan or is older than its unit, whatever interrupted the run that wrote them.
  - V(restarted) starts it from its unit.
author:
  - The inference.sglang contributors (@inference-sglang)
attributes:
  check_mode:
    description: Can run in check_mode and return changed status prediction without modifying the target.
    support: full
  diff_mode:
    description: Returns details on what has changed.
    support: none
  idempotent:
    description: When run twice in a row outside check mode, with the same arguments, the second run changes nothing.
    support: partial
    details: V(restarted) restarts each time, as a handler does.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  digest:
    description: Digest of the wanted plan.
    type: str
    required: true
  state:
    description:
      - V(compared) changes nothing.
      - V(restarted) makes systemd read the unit again, forgets earlier failures, and starts the instance without
        waiting for it.
    type: str
    choices:
      - compared
      - restarted
    default: compared
"""

EXAMPLES = r"""
- name: Compare the running instance with its plan
  inference.sglang.sglang_instance:
    name: tiny
    digest: "{{ plan.digest }}"
  notify: Restart the instance
"""

RETURN = r"""
active:
  description: The unit's ActiveState.
  returned: success
  type: str
digest:
  description: Digest of the plan that the running process was started from. Empty when none runs.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import health


def restart(module: AnsibleModule) -> None:
    unit = health.unit_name(module.params["name"])
    # reset-failed: starts on request count against the unit's StartLimitBurst too
    for command in (["daemon-reload"], ["reset-failed", unit], ["restart", "--no-block", unit]):
        status, _output, error = module.run_command(["systemctl", *command])
        if status != 0 and command[0] != "reset-failed":
            module.fail_json(msg=f"systemctl {' '.join(command)} failed with {status}: {error.strip()}")


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["compared", "restarted"], "default": "compared"},
        },
        supports_check_mode=True,
    )
    if module.params["state"] == "restarted":
        if not module.check_mode:
            restart(module)
        changed = True
    unit = health.unit_state(module.params["name"])
    running = health.running_digest(unit.main_pid) if unit.main_pid else ""
    if module.params["state"] == "compared":
        unit_file = health.unit_file(module.params["name"])
        changed = not health.runs_from_its_unit(unit, module.params["digest"], unit_file)
    module.exit_json(changed=changed, active=unit.active, digest=running)


if __name__ == "__main__":
    main()
