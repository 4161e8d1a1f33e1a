#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_stub
short_description: Make a stand-in for NVIDIA's driver library on a node without a driver
description:
  - Compiles a C(libcuda.so.1) whose functions all answer that there is no device, so that a release's CUDA builds load.
  - Fails on a node that has a driver.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  release_path:
    description: The release whose libraries are to load.
    type: path
    required: true
  python_version:
    description: Minor version of the release's interpreter.
    type: str
    required: true
  path:
    description: The folder of the library, for E(LD_LIBRARY_PATH).
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Let the release load without a driver
  inference.sglang.driver_stub:
    release_path: /opt/sglang/releases/0.5.12.post1-0a1b2c3d-none
    python_version: "3.11"
    path: /opt/sglang/cpu_engine/0.5.12.post1-0a1b2c3d-none/lib
"""

RETURN = r"""
path:
  description: The folder of the library.
  returned: success
  type: str
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import driver_stub, installs, wheels


def main():
    module = AnsibleModule(
        argument_spec={
            "release_path": {"type": "path", "required": True},
            "python_version": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    release, folder = module.params["release_path"], Path(module.params["path"])
    if sign := driver_stub.driver():
        module.fail_json(msg=str(driver_stub.refuse_driver(sign)))
    changed = not (folder / "libcuda.so.1").exists()
    if changed and not module.check_mode:
        os.umask(0o022)  # the service user is to read what root writes
        try:
            driver_stub.build(installs.site_packages(release, module.params["python_version"]), folder)
        except (wheels.InstallError, OSError) as failure:
            module.fail_json(msg=str(failure))
    module.exit_json(changed=changed, path=str(folder))


if __name__ == "__main__":
    main()
