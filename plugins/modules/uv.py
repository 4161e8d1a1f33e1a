#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: uv
short_description: Install uv by its hash into an environment of its own
description:
  - Makes a virtual environment and installs uv with the pip in it. An interrupted installation is made again.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  path:
    description: Folder of the environment. Name it after the version.
    type: path
    required: true
  lock:
    description: One pip requirement with the exact version of uv and the sha256 of its wheel.
    type: str
    required: true
  python:
    description: The interpreter of the environment.
    type: path
    default: /usr/bin/python3
  environment:
    description: Environment for pip, such as E(PIP_INDEX_URL) or a proxy.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Install uv
  inference.sglang.uv:
    path: /opt/sglang/uv/0.13.9
    lock: "{{ lookup('ansible.builtin.file', 'uv.txt') }}"
"""

RETURN = r"""
uv:
  description: The program.
  returned: success
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import credentials, wheels


def install(module: AnsibleModule) -> None:
    path = module.params["path"]
    environment = {name: str(value) for name, value in module.params["environment"].items()}
    pip = [f"{path}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for argv, data in (
        ([module.params["python"], "-m", "venv", "--clear", path], None),
        ([*pip, "--require-hashes", "--only-binary=:all:", "--requirement=/dev/stdin"], module.params["lock"]),
    ):
        status, output, error = module.run_command(
            argv, data=data, environ_update=environment, expand_user_and_vars=False
        )
        if status != 0:
            reason = (output + error).strip()[-2000:]
            module.fail_json(msg=f"`{' '.join(argv)}` failed with {status}:\n{reason}")


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "lock": {"type": "str", "required": True},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "environment": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    # no_log keeps the argument out of logs. In results it would blank every "1" that the environment holds as well.
    module.no_log_values = credentials.secrets(module.params["environment"])
    os.umask(0o022)
    path, digest = module.params["path"], wheels.digest(module.params["lock"])
    changed = (wheels.read_manifest(path) or {}).get("lock") != digest
    if changed and not module.check_mode:
        with wheels.alone(path):
            install(module)
            wheels.write_manifest(path, {"lock": digest})
    module.exit_json(changed=changed, uv=f"{path}/bin/uv")


if __name__ == "__main__":
    main()
