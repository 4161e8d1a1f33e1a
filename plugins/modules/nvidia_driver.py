#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_driver
short_description: Install the NVIDIA driver's open kernel modules of one branch, and hold them
description:
  - Judges the node and what a simulated installation would do, and fails with all errors before anything is changed. A
    driver is never changed while a program computes on a GPU, or an instance of SGLang runs.
  - Leaves containers, and nodes without an NVIDIA GPU on the PCI bus, alone, with a finding.
  - Holds every installed package of the driver.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
attributes:
  diff_mode:
    support: full
options:
  state:
    description:
      - V(judged) only tells whether the node is fit for an installation, before its source is there.
      - V(present) installs what is missing, and upgrades a driver of an older branch. V(latest) upgrades to the newest
        version that the preferences allow.
      - V(loaded) only fails where another driver is installed than the one that runs, and where that does not answer,
        or does not know every card.
      - V(released) releases the holds, V(absent) removes O(packages) as well.
    type: str
    choices: [judged, present, latest, loaded, released, absent]
    default: present
  packages:
    description: The driver's packages. Those for the node's distribution where there are none.
    type: list
    elements: str
    default: []
  branch:
    description: The driver's branch.
    type: int
    default: 580
  version:
    description: NVIDIA's exact version that the preferences keep. Where it is there, O(state=latest) changes nothing.
    type: str
    default: ""
  power_limit:
    description: The power limit that is asked for, W, which every card must take.
    type: int
  reboot:
    description:
      - Whether a reboot is V(allowed), V(refused), or the node is V(local).
      - Where one is pending and allowed, no program may compute on a GPU.
    type: str
    choices: [allowed, refused, local]
    default: refused
  recorded:
    description:
      - A reading of M(inference.sglang.gpu_info) to take for this node's.
      - For tests. It changes what is judged, not where packages are installed.
    type: dict
seealso:
  - module: inference.sglang.gpu_info
  - module: inference.sglang.apt_packages
"""

EXAMPLES = r"""
- name: Install the driver
  inference.sglang.nvidia_driver:
    branch: 580
"""

RETURN = r"""
managed:
  description: Whether the node has a driver to manage; false in a container and without a GPU.
  returned: success
  type: bool
packages:
  description: The driver's packages on this node.
  returned: success
  type: list
  elements: str
steps:
  description: What apt did or would do, a line each.
  returned: success
  type: list
  elements: str
held:
  description: Packages that this run put on hold, or released.
  returned: success
  type: list
  elements: str
version:
  description: NVIDIA's version of the driver that is installed as packages; empty for none.
  returned: success
  type: str
  sample: 580.105.08
loaded:
  description: Version of the driver that runs; empty for none.
  returned: success
  type: str
  sample: 580.95.05
reboot_pending:
  description: Whether those differ, in version or by proprietary kernel modules that are loaded.
  returned: success
  type: bool
power_differs:
  description: PCI addresses of the cards whose power limit in force is not O(power_limit).
  returned: success
  type: list
  elements: str
findings:
  description: What is wrong or worth knowing.
  returned: always
  type: list
  elements: dict
"""

from dataclasses import replace
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import apt, apt_install, drivers, node, readings
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_dicts
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Hardware


def driver_packages(installed: apt_install.Packages) -> dict[str, str]:
    """Versions of the installed packages that are part of the driver."""
    return {name: version for name, version in installed.versions.items() if apt.is_driver(name)}


def instances() -> tuple[str, ...]:
    """Units of SGLang instances that have a process."""
    units = {node.unit_of(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return tuple(sorted(unit for unit in units if unit.startswith("sglang-") and unit.endswith(".service")))


def upgrades(module: AnsibleModule, installed: dict[str, str]) -> bool:
    """Whether what is installed is to be changed. ``installed``: versions of the driver's packages."""
    if drivers.outdated(installed, module.params["branch"]):
        return True
    version = module.params["version"]
    return module.params["state"] == "latest" and (not version or version != drivers.installed_version(installed))


def planned(module: AnsibleModule, situation: drivers.Situation) -> tuple[list[apt.Change], list[Finding]]:
    """What apt would do, judged. Raises AptError."""
    packages, there = situation.packages, apt_install.installed(module.run_command)
    latest = upgrades(module, driver_packages(there))
    wanted = list(packages) if latest else apt_install.missing(packages, there)
    steps: list[apt.Change] = []
    findings: list[Finding] = []
    if wanted:
        steps, unknown = apt_install.plan(module.run_command, wanted, check=module.check_mode, newest=latest)
        if unknown:
            return steps, unknown
        asked = apt.Installation(packages, module.params["branch"], tuple(steps))
        findings = [*apt.judge(asked), *apt_install.changes_held(steps, there, apt.is_driver)]
    return steps, [*findings, *drivers.planned(replace(situation, changes=tuple(steps)))]


def removed(module: AnsibleModule, packages: tuple[str, ...]) -> list[apt.Change]:
    """What removing the packages would do. Raises AptError."""
    there = apt_install.installed(module.run_command).versions
    names = [name for name in apt.Installation(packages).names if name in there]
    return apt_install.remove(module.run_command, names, simulate=True) if names else []


def change(module: AnsibleModule, situation: drivers.Situation) -> tuple[dict, list[Finding]]:
    """Bring the packages and their holds about; what was done. Raises AptError."""
    state, packages = module.params["state"], situation.packages
    apt_install.stop(
        module.fail_json, apt_install.interrupted(apt_install.installed(module.run_command), apt.is_driver)
    )
    steps: list[apt.Change] = []
    findings: list[Finding] = []
    if state in ("present", "latest"):
        steps, findings = planned(module, situation)
    elif state == "absent":
        steps = removed(module, packages)
    situation = replace(situation, changes=tuple(steps))
    if state in ("judged", "present", "latest"):
        findings += drivers.before(situation)
    elif state == "absent":
        more = [step for step in steps if not apt.is_driver(step.package)]
        if more:
            seen = f"Removing the driver would change more: {'; '.join(step.line for step in more)}"
            findings.append(Finding("driver.removes_more", "error", seen, "Remove those packages yourself first"))
        findings += [*drivers.busy(situation), *drivers.serving(situation)]
    else:
        findings += drivers.after(situation) if state == "loaded" else []
    apt_install.stop(module.fail_json, findings)
    if steps and not module.check_mode:
        if state == "absent":
            apt_install.remove(module.run_command, [step.package for step in steps])
        else:
            there = apt_install.installed(module.run_command)
            latest = upgrades(module, driver_packages(there))
            wanted = packages if latest else apt_install.missing(packages, there)
            apt_install.install(module.run_command, wanted)
    there = apt_install.installed(module.run_command)
    ours = set(driver_packages(there))
    held: list[str] = []
    if state in ("present", "latest"):
        coming = {step.package for step in steps if step.action == "Inst" and apt.is_driver(step.package)}
        held = sorted((ours | (coming if module.check_mode else set())) - there.held)
    elif state in ("released", "absent"):
        held = sorted(ours & there.held)
    if held and not module.check_mode:
        apt_install.hold(module.run_command, held, held=state in ("present", "latest"))
    return {"steps": [step.line for step in steps], "held": held}, findings


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["judged", "present", "latest", "loaded", "released", "absent"],
                "default": "present",
            },
            "packages": {"type": "list", "elements": "str", "default": []},
            "branch": {"type": "int", "default": 580},
            "version": {"type": "str", "default": ""},
            "power_limit": {"type": "int"},
            "reboot": {"type": "str", "choices": ["allowed", "refused", "local"], "default": "refused"},
            "recorded": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = apt_install.LOCALE
    distribution = node.os_release(Path("/")).get("ID", "")
    packages = drivers.packages_for(distribution, module.params["packages"])
    if not packages:
        remedy = "Set nvidia_driver_packages to the names of the driver's packages with open kernel modules"
        apt_install.stop(
            module.fail_json, [Finding("driver.packages", "error", f"No packages are known for {distribution}", remedy)]
        )
    undoing = module.params["state"] in ("released", "absent")
    if not undoing:
        apt_install.stop(module.fail_json, apt.judge(apt.Installation(packages, module.params["branch"])))
    recorded = module.params["recorded"]
    hardware = readings.read() if recorded is None else Hardware.from_dict(recorded)
    situation = drivers.Situation(
        hardware=hardware,
        packages=packages,
        installed=driver_packages(apt_install.installed(module.run_command)),
        instances=instances(),
        branch=module.params["branch"],
        version=module.params["version"],
        refreshed=not module.check_mode,
        limit=module.params["power_limit"],
        reboot=module.params["reboot"],
    )
    result = {"steps": [], "held": []}
    findings = [] if undoing else drivers.unfit(situation)
    managed = not findings
    if not managed:
        # Nobody mends what preflight left to this role.
        apt_install.stop(module.fail_json, [*findings, *drivers.running(situation)])
    else:
        try:
            result, findings = change(module, situation)
        except apt_install.AptError as error:
            apt_install.stop(module.fail_json, error.findings)
    situation = replace(situation, installed=driver_packages(apt_install.installed(module.run_command)))
    if module._diff:
        mark = "unhold" if undoing else "hold"
        lines = [*result["steps"], *(f"{mark} {name}" for name in result["held"])]
        result["diff"] = {"before": "", "after": "".join(f"{line}\n" for line in lines)}
    module.exit_json(
        changed=bool(result["steps"] or result["held"]),
        managed=managed,
        packages=list(packages),
        version=drivers.installed_version(situation.installed or {}),
        loaded=hardware.driver.version,
        reboot_pending=managed and drivers.pending(situation),
        power_differs=drivers.power_differs(situation),
        findings=as_dicts(findings),
        **result,
    )


if __name__ == "__main__":
    main()
