#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_activation
short_description: Keep what an instance was proven to answer from, and go back to it
description:
  - An activation is a plan and a unit. Beside C(/etc/sglang/NAME/plan.json), the folder C(good) holds the activation
    that was proven last to answer, and C(previous) the proven one before it. Both are read from the node alone.
  - V(kept) is for before a switch. If the instance answers from an activation that no run has recorded, as when one was
    killed before it could, that is recorded now.
  - V(recorded) is for after the proof. The current plan and unit become C(good), and what was good becomes C(previous).
  - V(reverted) is for after a switch that failed. The activation that was proven last is put back. Where there is none,
    or it cannot be started any more, the instance is stopped, so that it does not fail again and again. If what failed
    is itself what was proven last, nothing is changed.
  - V(former) is for going back on request. The activation that was proven before the current one is put back; if that
    cannot be started any more, the module fails and changes nothing. Until V(recorded) or V(reverted), the file
    C(.former) beside the plan holds which one it was, so that an interrupted run that is started again goes on to it.
  - Where an activation is put back and the instance is to run, it is started from it, without waiting. The API key is
    not part of one, so an instance that has a key is always started with the newest.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
attributes:
  diff_mode:
    support: full
    details: Plan and unit, where they are put back.
  idempotent:
    support: partial
    details: V(former) goes back and forth, once each was recorded.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  state:
    description: What is to be true of plan, unit and the two folders.
    type: str
    choices:
      - kept
      - recorded
      - reverted
      - former
    required: true
  digest:
    description:
      - Digest of the plan that was proven, for V(recorded) (required).
      - One that is not the current plan's is refused, because someone else has changed it meanwhile.
    type: str
  running:
    description: Whether the instance is to run from what is put back. If not, it is stopped.
    type: bool
    default: true
  prompt:
    description: The text that is completed to prove that the instance answers, for V(kept).
    type: str
    default: The quick brown fox
"""

EXAMPLES = r"""
- name: Keep what serves now
  inference.sglang.sglang_activation:
    name: tiny
    state: kept
  register: before

- name: Put back what served before the switch
  inference.sglang.sglang_activation:
    name: tiny
    state: reverted
    running: "{{ before.running }}"
"""

RETURN = r"""
running:
  description:
    - With V(kept), whether the instance runs, or failed to. Not where it was stopped, or never started.
    - With V(reverted) and V(former), whether it is on its way, so that it can be waited for.
  returned: success
  type: bool
restored:
  description: Whether an activation was put back, or would be.
  returned: with V(reverted) and V(former)
  type: bool
plan:
  description: The plan of the activation that was recorded or put back. Empty where none was.
  returned: success
  type: dict
msg:
  description: The findings as text, one a line.
  returned: with V(reverted) and V(former)
  type: str
findings:
  description: What was put back, or why nothing was.
  returned: with V(reverted) and V(former)
  type: list
  elements: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import activations, credentials, health
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_dicts, as_text


def keep(module: AnsibleModule, slots: activations.Slots, unit: health.UnitState) -> dict:
    """Record what serves if that was not done. An instance that does not answer is none of this state's business."""
    name, current = module.params["name"], slots.current
    changed = False
    if current and not current.same_as(slots.good) and serves(module, current, unit):
        changed = True
        if not module.check_mode:
            activations.record(name)
    return {"changed": changed, "running": not unit.stopped, "plan": current.settings if current and changed else {}}


def serves(module: AnsibleModule, current: activations.Activation, unit: health.UnitState) -> bool:
    plan = current.settings
    unit_file = health.unit_file(module.params["name"])
    if not plan or unit.active != "active":
        return False
    if not health.runs_from_its_unit(unit, current.digest, unit_file, current.secrets):
        return False
    try:
        key = credentials.read_key(current.secrets)
        return health.healthy(plan["url"]) and bool(
            health.complete(plan["url"], plan["served_name"], module.params["prompt"], key=key)
        )
    except (OSError, ValueError):
        return False


def record(module: AnsibleModule, slots: activations.Slots, unit: health.UnitState) -> dict:
    """Make the current activation the good one."""
    digest, current = module.params["digest"], slots.current
    # In check mode the plan that would be proven was not written.
    if not module.check_mode and (current is None or current.digest != digest):
        found = current.digest if current else "absent"
        module.fail_json(
            msg=f"{activations.folder(module.params['name'])}/{activations.PLAN} is {found}, and {digest} was proven: "
            "someone changed it meanwhile; run again"
        )
    changed = current is None or current.digest != digest or not current.same_as(slots.good)
    if not module.check_mode:
        if changed:
            activations.record(module.params["name"])
        activations.arrive(module.params["name"])
    return {"changed": changed, "running": True, "plan": current.settings if current else {}}


def revert(module: AnsibleModule, slots: activations.Slots, unit: health.UnitState) -> dict:
    """Put the last proven activation back, or stop the instance."""
    target = slots.proven
    if not module.check_mode:
        activations.arrive(module.params["name"])
    if target is not None and target.same_as(slots.current):
        findings = [activations.already_proven(target)]
        return {"changed": False, "running": False, "restored": False, "plan": {}, "findings": findings}
    findings = activations.judge(target) if target else []
    if target and not findings:
        return put_back(module, slots, unit, target)
    if not unit.stopped and not module.check_mode:
        health.stop(module.params["name"])
    return {
        "changed": not unit.stopped,
        "running": False,
        "restored": False,
        "plan": {},
        "findings": [*findings, activations.stopped(module.params["name"])],
    }


def go_back(module: AnsibleModule, slots: activations.Slots, unit: health.UnitState) -> dict:
    """Put the activation before the current one back, or fail."""
    target = slots.former
    findings = activations.judge(target) if target else [activations.no_former(module.params["name"])]
    if target is None or findings:
        module.fail_json(
            msg=f"{module.params['name']} cannot go back, nothing was changed:\n{as_text(findings)}",
            findings=as_dicts(findings),
        )
    if not module.check_mode and not target.same_as(slots.current):
        activations.aim(module.params["name"], target)
    return put_back(module, slots, unit, target)


def put_back(
    module: AnsibleModule, slots: activations.Slots, unit: health.UnitState, target: activations.Activation
) -> dict:
    """Make ``target`` the current activation, and start or stop the instance accordingly."""
    name, current = module.params["name"], slots.current
    changed = not target.same_as(current)
    if not module.check_mode:
        from_another = activations.runs_from_another(unit, current, target)
        if changed:
            activations.restore(name, target)
        if not module.params["running"]:
            health.stop(name)
        elif from_another or not runs(name, target):
            health.restart(name)
    before = current or activations.Activation(b"", b"")
    files = (
        (activations.folder(name) / activations.PLAN, before.plan, target.plan),
        (health.unit_file(name), before.unit, target.unit),
    )
    diff = [
        {
            "before": old.decode(errors="replace"),
            "after": new.decode(errors="replace"),
            "before_header": str(path),
            "after_header": str(path),
        }
        for path, old, new in files
        if old != new
    ]
    return {
        "changed": changed,
        "running": module.params["running"],
        "restored": True,
        "plan": target.settings,
        "findings": [activations.is_back(target, running=module.params["running"], done=not module.check_mode)],
        "diff": diff,
    }


def runs(name: str, target: activations.Activation) -> bool:
    """Whether the process still runs from the activation that was just put back."""
    health.reload()
    return health.runs_from_its_unit(health.unit_state(name), target.digest, health.unit_file(name), target.secrets)


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["kept", "recorded", "reverted", "former"], "required": True},
            "digest": {"type": "str"},
            "running": {"type": "bool", "default": True},
            "prompt": {"type": "str", "default": "The quick brown fox"},
        },
        required_if=[("state", "recorded", ["digest"])],
        supports_check_mode=True,
    )
    os.umask(0o022)
    states = {"kept": keep, "recorded": record, "reverted": revert, "former": go_back}
    try:
        slots, unit = activations.read(module.params["name"]), health.unit_state(module.params["name"])
        result = states[module.params["state"]](module, slots, unit)
    except (OSError, health.SystemdError) as failure:
        module.fail_json(msg=str(failure))
    if "findings" in result:
        result["msg"] = as_text(result["findings"])
        result["findings"] = as_dicts(result["findings"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
