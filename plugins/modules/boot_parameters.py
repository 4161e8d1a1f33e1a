#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: boot_parameters
short_description: Tell or make the kernel parameters that let GPUs reach each other
description:
  - Compares what the node's IOMMU and PCI bridges do to transfers between GPUs, the running kernel's command line and
    that of the next boot, and returns the exact change, if there is one.
  - Makes it only with O(fix), and only for GRUB on Debian or Ubuntu, by a file of its own in C(/etc/default/grub.d)
    followed by C(update-grub). If that fails, the file is put back as it was.
  - Never reboots. What the running kernel was not given yet is the finding C(boot.reboot_pending).
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
attributes:
  diff_mode:
    support: full
options:
  state:
    description: V(absent) takes the file back; the parameters end with the next boot.
    type: str
    choices: [present, absent]
    default: present
  hardware:
    description: What M(inference.sglang.gpu_info) read on the node. Required with O(state=present).
    type: dict
  iommu:
    description: What an IOMMU that translates is to do. V(keep) leaves it alone.
    type: str
    choices: [passthrough, "off", keep]
    default: passthrough
  acs_bridges:
    description:
      - PCI addresses of the bridges whose ACS is to redirect nothing.
      - By default those above the GPUs that redirect now, and those that this module has set before.
    type: list
    elements: str
  fix:
    description: Whether the change is made.
    type: bool
    default: false
  root:
    description: Folder in which the system is found.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Tell the change
  inference.sglang.boot_parameters:
    hardware: "{{ read.hardware }}"

- name: Make it
  inference.sglang.boot_parameters:
    hardware: "{{ read.hardware }}"
    acs_bridges: ["0000:40:01.1"]
    fix: true
"""

RETURN = r"""
loader:
  description: What boots the node, V(grub) or V(systemd-boot); empty where it is not known.
  returned: success
  type: str
  sample: grub
lines:
  description: What the next boot's command line is made of, without the file of this module.
  returned: success
  type: dict
  sample: {"GRUB_CMDLINE_LINUX": "", "GRUB_CMDLINE_LINUX_DEFAULT": "quiet"}
wanted:
  description: The same as it should be.
  returned: success
  type: dict
  sample: {"GRUB_CMDLINE_LINUX": "", "GRUB_CMDLINE_LINUX_DEFAULT": "quiet iommu=pt"}
reboot_pending:
  description: Whether the running kernel lacks what the next one will have.
  returned: success
  type: bool
findings:
  description: What is worth knowing, with C(id), C(severity), C(seen), C(remedy) and C(source).
  returned: success
  type: list
  elements: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import boot
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_dicts
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Hardware


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "hardware": {"type": "dict"},
            "iommu": {"type": "str", "choices": ["passthrough", "off", "keep"], "default": "passthrough"},
            "acs_bridges": {"type": "list", "elements": "str"},
            "fix": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
        },
        required_if=[("state", "present", ["hardware"])],
        supports_check_mode=True,
    )
    root, fix = Path(module.params["root"]), module.params["fix"]
    try:
        booted = boot.read(root)
        if module.params["state"] == "absent":
            wanted, needed, fix = boot.Wanted(), "", True
            findings = boot.leftover(booted)
        else:
            hardware = Hardware.from_dict(module.params["hardware"])
            wanted = boot.wanted(hardware, module.params["iommu"], module.params["acs_bridges"], booted)
            needed = boot.drop_in(booted, wanted)
            findings = boot.judge(booted, wanted, fix)
        change = fix and not booted.fault and (needed != (booted.drop_in or "") or (needed and booted.stale))
        if change and not module.check_mode:
            boot.write(root, booted, needed, lambda: module.run_command(["update-grub"], check_rc=True))
    except (OSError, boot.UnreadableError) as problem:
        module.fail_json(msg=f"The boot parameters cannot be read or written: {problem}")
    module.exit_json(
        changed=bool(change),
        loader=booted.loader,
        lines=dict(booted.lines),
        wanted=boot.after(booted, wanted),
        reboot_pending=any(finding.id == "boot.reboot_pending" for finding in findings),
        findings=as_dicts(findings),
        diff={
            "before_header": f"/{boot.DROP_IN}",
            "after_header": f"/{boot.DROP_IN}",
            "before": booted.drop_in or "",
            "after": needed if change else booted.drop_in or "",
        },
    )


if __name__ == "__main__":
    main()
