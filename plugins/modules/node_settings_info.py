#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: node_settings_info
short_description: Read what role node_settings sets on a node, and tell what lacks
description:
  - Reads sysctls, the policy of transparent huge pages, options of loaded modules and nvidia-persistenced, each as it
    is now and not as files say.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes.info
options:
  sysctl:
    description: Sysctls and the values that they should have.
    type: dict
    default: {}
  module_options:
    description: Options that kernel modules should have, by module.
    type: dict
    default: {}
  persistence:
    description: Whether GPUs are to stay initialised while nothing uses them.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Read the node
  inference.sglang.node_settings_info:
    sysctl:
      kernel.numa_balancing: 0
    module_options:
      nvidia_uvm:
        uvm_disable_hmm: 1
"""

RETURN = r"""
container:
  description: Kind of container that the node is, by systemd's name; empty for a machine.
  returned: success
  type: str
  sample: podman
sysctl_differs:
  description: Names of the sysctls that have another value. One that this kernel has not is left out.
  returned: success
  type: list
  elements: str
hugepages:
  description: Policy of transparent huge pages; empty for a kernel without.
  returned: success
  type: str
  sample: madvise
persistenced:
  description: What nvidia-persistenced's unit starts, with persistence mode. Empty without unit, GPU or loaded driver.
  returned: success
  type: str
  sample: /usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose --persistence-mode
persistenced_running:
  description: What runs of it, as it was started; empty where nothing does.
  returned: success
  type: str
findings:
  description: What is worth knowing, with C(id), C(severity), C(seen), C(remedy) and C(source).
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import node_settings
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_dicts


def main():
    module = AnsibleModule(
        argument_spec={
            "sysctl": {"type": "dict", "default": {}},
            "module_options": {"type": "dict", "default": {}},
            "persistence": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params["module_options"]
    options = {
        name: {key: node_settings.text_of(value) for key, value in values.items()} for name, values in given.items()
    }
    state = node_settings.read(list(module.params["sysctl"]), list(options))
    wanted = node_settings.Wanted(options=options, persistence=module.params["persistence"])
    module.exit_json(
        changed=False,
        container=state.container,
        sysctl_differs=node_settings.differing(state, module.params["sysctl"]),
        hugepages=state.hugepages,
        persistenced=node_settings.persistent(state.persistenced) if state.gpus and state.driver else "",
        persistenced_running=state.running,
        findings=as_dicts(node_settings.judge(state, wanted)),
    )


if __name__ == "__main__":
    main()
