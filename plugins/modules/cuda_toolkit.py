#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_toolkit
short_description: Install a CUDA toolkit from locked wheels and prove that it compiles
description:
  - Installs the wheels of a lock into a folder of their own, adds what they lack for linking, and compiles a small
    program that uses CUB for one GPU architecture. No GPU, driver or C(/usr/local/cuda) is needed or touched.
  - A folder that holds the toolkit completely is left alone. One that was interrupted is completed.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  path:
    description: The toolkit's folder. Name it after the lock, so that another lock gets another folder.
    type: path
    required: true
  lock:
    description: The lock's text, one pip requirement with sha256 hashes a wheel set.
    type: str
    required: true
  architecture:
    description: The GPU architecture to compile for, as nvcc names it after C(sm_).
    type: str
    default: 120f
  uv:
    description: The uv program.
    type: path
    required: true
  cache_path:
    description: The wheel cache of uv. On one mount with O(path), files are hard links.
    type: path
    required: true
  python:
    description: The interpreter whose wheels are chosen.
    type: path
    default: /usr/bin/python3
  environment:
    description: Environment for uv, such as E(UV_DEFAULT_INDEX) or a proxy. Never logged.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Install CUDA 13.0
  inference.sglang.cuda_toolkit:
    path: /opt/sglang/toolkits/13.0-0a1b2c3d
    lock: "{{ lookup('ansible.builtin.file', 'locks/13.0.txt') }}"
    uv: /opt/sglang/uv/0.13.9/bin/uv
    cache_path: /opt/sglang/cache
"""

RETURN = r"""
cuda_home:
  description: The folder to use as E(CUDA_HOME).
  returned: success
  type: str
  sample: /opt/sglang/toolkits/13.0-0a1b2c3d/nvidia/cu13
manifest:
  description: What the folder holds. Empty in check mode on a node that lacks it.
  returned: success
  type: dict
  contains:
    lock:
      description: Digest of the lock.
      type: str
    versions:
      description: Distribution name to version.
      type: dict
    architectures:
      description: Architecture that the proof was compiled for, as nvcc names it, to what its binary holds.
      type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import credentials, toolkits, wheels


def fits(module: AnsibleModule, manifest: dict) -> bool:
    """Whether a manifest is that of the wanted lock, proven for the wanted architecture."""
    lock, architecture = module.params["lock"], module.params["architecture"]
    return manifest.get("lock") == wheels.digest(lock) and architecture in manifest.get("architectures", {})


def install(module: AnsibleModule) -> dict:
    """Install and prove; the manifest. Raises InstallError."""
    path, lock, architecture = (module.params[name] for name in ("path", "lock", "architecture"))

    def run(argv, environment):
        return module.run_command(
            argv, environ_update=dict(environment), expand_user_and_vars=False, handle_exceptions=False
        )

    installer = wheels.Installer(module.params["uv"], module.params["cache_path"], module.params["environment"], run)
    installer.install_folder(lock, path, module.params["python"])
    toolkits.add_link_names(path)
    held = toolkits.compile_probe(path, architecture)
    proven = (wheels.read_manifest(path) or {}).get("architectures", {})
    manifest = {
        "lock": wheels.digest(lock),
        "versions": wheels.pins(lock),
        "architectures": proven | {architecture: sorted(held)},
    }
    wheels.write_manifest(path, manifest)
    return manifest


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "lock": {"type": "str", "required": True},
            "architecture": {"type": "str", "default": "120f"},
            "uv": {"type": "path", "required": True},
            "cache_path": {"type": "path", "required": True},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "environment": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    # no_log keeps the argument out of logs. In results it would blank every "1" that the environment holds as well.
    module.no_log_values = credentials.secrets(module.params["environment"])
    os.umask(0o022)  # the service user is to read what root installs
    path = module.params["path"]
    manifest = wheels.read_manifest(path) or {}
    changed = not fits(module, manifest)
    if changed and not module.check_mode:
        try:
            with wheels.alone(path):
                manifest = wheels.read_manifest(path) or {}
                if not fits(module, manifest):
                    manifest = install(module)
        except (wheels.InstallError, OSError) as failure:
            module.fail_json(msg=str(failure))
    module.exit_json(changed=changed, cuda_home=str(toolkits.home(path)), manifest=manifest)


if __name__ == "__main__":
    main()
