#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_packages
short_description: Install packages that leave the NVIDIA driver alone, and hold them
description:
  - Judges the names, then what a simulated installation would do. Before anything is changed, it refuses what would
    install, change or remove the NVIDIA driver, remove anything else, or change a package that someone else holds.
  - Package lists of the source of M(inference.sglang.apt_source) are read again where apt does not know a package.
  - Holds what it installed, so that no upgrade but this module's own changes it.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
attributes:
  diff_mode:
    support: full
options:
  names:
    description: Packages, each by name or as C(name=version).
    type: list
    elements: str
    required: true
  state:
    description:
      - V(present) installs what is missing, V(latest) also upgrades, V(absent) removes these packages and no others.
    type: str
    choices: [present, latest, absent]
    default: present
  hold:
    description: Whether they, and those of NVIDIA's that come with them, are held.
    type: bool
    default: true
  recommends:
    description: Whether recommended packages are installed as well.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Install the toolkit
  inference.sglang.apt_packages:
    names:
      - cuda-toolkit-13-0
"""

RETURN = r"""
steps:
  description: What apt did or would do, a line each, as its simulation prints them.
  returned: success
  type: list
  elements: str
  sample: ["Inst cuda-toolkit-13-0 (13.0.2-1 NVIDIA CUDA [all])"]
versions:
  description: Versions of O(names) that are installed.
  returned: success
  type: dict
  sample: {"cuda-toolkit-13-0": "13.0.2-1"}
held:
  description: Packages that this run put on hold, or released.
  returned: success
  type: list
  elements: str
findings:
  description: What is wrong or worth knowing.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import apt, apt_install
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_dicts


def present(module: AnsibleModule, packages: list[str]) -> tuple[list[apt.Change], list[Finding]]:
    """Install what is missing; the steps. Raises AptError."""
    node = apt_install.installed(module.run_command)
    apt_install.stop(
        module.fail_json,
        apt_install.interrupted(node, lambda name: name in packages or bool(apt_install.CUDA.match(name))),
    )
    latest = module.params["state"] == "latest"
    wanted = packages if latest else apt_install.missing(packages, node)
    if not wanted:
        return [], []
    recommends = module.params["recommends"]
    steps, unknown = apt_install.plan(
        module.run_command, wanted, check=module.check_mode, recommends=recommends, newest=latest
    )
    asked = apt.Installation(tuple(wanted), changes=tuple(steps))
    names = set(asked.names)
    ours = apt_install.changes_held(steps, node, lambda name: name in names or bool(apt_install.CUDA.match(name)))
    apt_install.stop(module.fail_json, [*apt.judge(asked), *ours])
    if steps and not module.check_mode:
        apt_install.install(module.run_command, wanted, recommends=recommends)
    return steps, unknown


def absent(module: AnsibleModule, packages: list[str]) -> list[apt.Change]:
    """Remove the packages; the steps. Raises AptError."""
    node = apt_install.installed(module.run_command)
    there = [name for name in packages if name in node.versions]
    if not there:
        return []
    steps = apt_install.remove(module.run_command, there, simulate=True)
    more = [step for step in steps if step.package not in there]
    if more:
        seen = f"Removing {' '.join(there)} would change more: {'; '.join(step.line for step in more)}"
        apt_install.stop(
            module.fail_json,
            [Finding("apt.removes_more", "error", seen, "Remove it with apt-get yourself if that is right")],
        )
    if not module.check_mode:
        apt_install.remove(module.run_command, there)
    return steps


def main():
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "latest", "absent"], "default": "present"},
            "hold": {"type": "bool", "default": True},
            "recommends": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = apt_install.LOCALE
    packages, removing = module.params["names"], module.params["state"] == "absent"
    names = apt.Installation(tuple(packages)).names
    apt_install.stop(module.fail_json, apt.package_name(apt.Installation(tuple(packages))))
    held: list[str] = []
    findings: list[Finding] = []
    try:
        if removing:
            steps = absent(module, names)
        else:
            apt_install.stop(module.fail_json, apt.judge(apt.Installation(tuple(packages))))
            steps, findings = present(module, packages)
            node = apt_install.installed(module.run_command)
            # What they need, too, also where a run that was killed before it held that had installed it.
            needed = {*apt_install.needed(module.run_command, names), *(step.package for step in steps)}
            mine = {*names, *(name for name in needed if apt_install.CUDA.match(name))}
            if module.params["hold"]:
                held = sorted(name for name in mine - node.held if name in node.versions or module.check_mode)
            else:
                held = sorted(mine & node.held)
            if held and not module.check_mode:
                apt_install.hold(module.run_command, held, held=module.params["hold"])
    except apt_install.AptError as error:
        apt_install.stop(module.fail_json, error.findings)
    node = apt_install.installed(module.run_command)
    lines = [step.line for step in steps]
    result = {
        "changed": bool(steps or held),
        "steps": lines,
        "held": held,
        "versions": {name: node.versions[name] for name in names if name in node.versions},
        "findings": as_dicts(findings),
    }
    if module._diff:
        marks = [f"{'hold' if module.params['hold'] else 'unhold'} {name}" for name in held]
        result["diff"] = {"before": "", "after": "".join(f"{line}\n" for line in lines + marks)}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
