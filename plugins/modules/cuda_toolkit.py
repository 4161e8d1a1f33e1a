#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_toolkit
short_description: Have a CUDA toolkit and the proof that it compiles
description:
  - Installs a toolkit from locked wheels, or takes one that packages or someone else installed, and compiles a small
    program that uses CUB for one GPU architecture. No GPU, driver or C(/usr/local/cuda) is needed or touched.
  - What was found and proven stands in a manifest in O(path), which is the module's own folder. A toolkit that it tells
    rightly is left alone; an installation of wheels that was interrupted is completed.
  - A toolkit that was not installed from wheels must lie in a real folder, with compiler and headers of one version,
    complete for linking, readable by the service user and writable by nobody else.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  state:
    description:
      - V(absent) removes what is in O(path), with the kernel caches of that name. A toolkit that a plan, a service or a
        process uses is not removed, and the module fails. O(home) of O(method=apt) and O(method=existing) stays.
    type: str
    choices: [present, absent]
    default: present
  method:
    description: Who installs the toolkit. V(wheels) is this module; V(apt) and V(existing) are taken as they are.
    type: str
    choices: [wheels, apt, existing]
    default: wheels
  path:
    description: The folder of manifest, proof and wheels. Name it after the toolkit, so that another gets its own.
    type: path
    required: true
  home:
    description:
      - The toolkit's E(CUDA_HOME), needed with O(method=apt) and O(method=existing).
      - That of wheels is C(nvidia/cu13) in O(path).
    type: path
  version:
    description: The CUDA version that the toolkit must have. Needed with O(method=apt) and O(method=existing).
    type: str
  torch:
    description: CUDA version of the PyTorch that compiles with it. Not judged unless set.
    type: str
    default: ""
  user:
    description: The service user, who must be able to read it; it need not exist yet.
    type: str
    default: sglang
  lock:
    description: The lock's text, one pip requirement with sha256 hashes a wheel set. Needed with O(method=wheels).
    type: str
  architecture:
    description: The GPU architecture to compile for, as nvcc names it after C(sm_).
    type: str
    default: 120f
  uv:
    description: The uv program. Needed with O(method=wheels).
    type: path
  cache_path:
    description: The wheel cache of uv. On one mount with O(path), files are hard links. Needed with O(method=wheels).
    type: path
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

- name: Prove a toolkit that is there
  inference.sglang.cuda_toolkit:
    method: existing
    path: /opt/sglang/toolkits/13.0-existing-0a1b2c3d
    home: /usr/local/cuda-13.0
    version: "13.0"

- name: Remove a toolkit, unless it is in use
  inference.sglang.cuda_toolkit:
    state: absent
    path: /opt/sglang/toolkits/13.0-0a1b2c3d
"""

RETURN = r"""
cuda_home:
  description: The folder to use as E(CUDA_HOME).
  returned: success
  type: str
  sample: /opt/sglang/toolkits/13.0-0a1b2c3d/nvidia/cu13
findings:
  description: What is worth knowing; where the module fails, what is wrong.
  returned: always
  type: list
  elements: dict
manifest:
  description: What the folder holds. Empty in check mode on a node that lacks it, and after a removal.
  returned: success
  type: dict
  contains:
    method:
      description: Who installed it.
      type: str
    home:
      description: Its E(CUDA_HOME).
      type: str
    lock:
      description: Digest of the lock; with O(method=wheels) only.
      type: str
    versions:
      description: Distribution or Debian package to version; empty for O(method=existing).
      type: dict
    nvcc:
      description: Exact version of the compiler.
      type: str
    headers:
      description: Version of the headers.
      type: str
    architectures:
      description: Architecture that the proof was compiled for, as nvcc names it, to what its binary holds.
      type: dict
packages:
  description: Installed packages of O(version) with O(method=apt), which M(inference.sglang.apt_packages) removes.
  returned: O(state=absent)
  type: list
  elements: str
removed:
  description: Folders that were removed, or would be.
  returned: O(state=absent)
  type: list
  elements: str
"""

import os
import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import (
    credentials,
    node,
    toolkit_rules,
    toolkit_users,
    toolkits,
    wheels,
)
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_dicts, as_text, errors


def install(module: AnsibleModule) -> None:
    """Install the wheels. Raises InstallError."""
    path, lock = module.params["path"], module.params["lock"]

    def run(argv, environment):
        return module.run_command(
            argv, environ_update=dict(environment), expand_user_and_vars=False, handle_exceptions=False
        )

    installer = wheels.Installer(module.params["uv"], module.params["cache_path"], module.params["environment"], run)
    installer.install_folder(lock, path, module.params["python"])
    toolkits.add_link_names(path)


def found(module: AnsibleModule, home: str) -> tuple[dict, list]:
    """What a manifest must tell of the toolkit that is there, and the findings on it; nothing where it is to come."""
    method = module.params["method"]
    if method == "wheels":
        lock = module.params["lock"]
        return {"method": method, "home": home, "lock": wheels.digest(lock), "versions": wheels.pins(lock)}, []
    if method == "apt" and module.check_mode and not os.path.exists(f"{home}/bin/nvcc"):
        return {}, []
    wanted = toolkit_rules.Wanted(
        method=method,
        version=module.params["version"],
        torch=module.params["torch"],
        home=home,
        architecture=module.params["architecture"],
    )
    account = node.account_of(module.params["user"])
    tree = toolkits.read(home, account.uid, tuple(account.gids))
    versions = toolkits.debian_packages(module.params["version"]) if method == "apt" else {}
    told = {"method": method, "home": home, "versions": versions, "nvcc": tree.nvcc, "headers": tree.headers}
    return told, toolkit_rules.judge(wanted, tree)


def fits(module: AnsibleModule, manifest: dict, told: dict) -> bool:
    """Whether a manifest tells what is there, proven for the wanted architecture."""
    proven = module.params["architecture"] in manifest.get("architectures", {})
    return bool(told) and proven and told.items() <= manifest.items()


def prove(module: AnsibleModule, told: dict) -> dict:
    """Compile the proof, and write it down with what is there. Raises InstallError."""
    path, architecture, home = module.params["path"], module.params["architecture"], Path(told["home"])
    former = wheels.read_manifest(path) or {}
    proven = former.get("architectures", {}) if told.items() <= former.items() else {}
    if not proven:
        (Path(path) / wheels.MANIFEST).unlink(missing_ok=True)  # what it tells is there no longer
    held = toolkits.compile_probe(path, architecture, home)
    if told["method"] == "wheels":
        tree = toolkits.read(str(home), 0, ())
        told = told | {"nvcc": tree.nvcc, "headers": tree.headers}
    manifest = told | {"architectures": proven | {architecture: sorted(held)}}
    wheels.write_manifest(path, manifest)
    return manifest


def present(module: AnsibleModule, home: str) -> dict:
    """Have the toolkit, and its proof."""
    path = module.params["path"]
    told, findings = found(module, home)
    if wrong := errors(findings):
        module.fail_json(msg=as_text(wrong), findings=as_dicts(findings))
    manifest = wheels.read_manifest(path) or {}
    changed = not fits(module, manifest, told)
    if changed and not module.check_mode:
        try:
            with wheels.alone(path):
                manifest = wheels.read_manifest(path) or {}
                if not fits(module, manifest, told):
                    if module.params["method"] == "wheels":
                        install(module)
                    manifest = prove(module, told)
        except (wheels.InstallError, OSError) as failure:
            module.fail_json(msg=str(failure), findings=as_dicts(findings))
    return {"changed": changed, "cuda_home": home, "manifest": manifest, "findings": as_dicts(findings)}


def absent(module: AnsibleModule, home: str) -> dict:
    """Remove the module's own folder and its caches, unless somebody uses the toolkit."""
    path = Path(module.params["path"])
    folder = path if module.params["method"] == "wheels" else Path(home)
    going = [gone for gone in (path, *toolkit_users.caches(path.name)) if gone.exists()]
    apt = module.params["method"] == "apt"
    packages = list(toolkits.debian_packages(module.params["version"])) if apt else []
    if (going or packages) and (findings := toolkit_users.keeps(folder)):
        module.fail_json(msg=as_text(findings), findings=as_dicts(findings))
    if not module.check_mode:
        try:
            (path / wheels.MANIFEST).unlink(missing_ok=True)
            for gone in going:
                shutil.rmtree(gone)
            path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
        except OSError as failure:
            module.fail_json(msg=f"It cannot be removed: {failure}", findings=[])
    return {
        "changed": bool(going),
        "cuda_home": home,
        "manifest": {},
        "findings": [],
        "removed": [str(gone) for gone in going],
        "packages": packages,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "method": {"type": "str", "choices": ["wheels", "apt", "existing"], "default": "wheels"},
            "path": {"type": "path", "required": True},
            "home": {"type": "path"},
            "version": {"type": "str"},
            "torch": {"type": "str", "default": ""},
            "user": {"type": "str", "default": "sglang"},
            "lock": {"type": "str"},
            "architecture": {"type": "str", "default": "120f"},
            "uv": {"type": "path"},
            "cache_path": {"type": "path"},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "environment": {"type": "dict", "default": {}, "no_log": True},
        },
        required_if=[("method", "apt", ("home", "version")), ("method", "existing", ("home", "version"))],
        supports_check_mode=True,
    )
    # no_log keeps the argument out of logs. In results it would blank every "1" that the environment holds as well.
    module.no_log_values = credentials.secrets(module.params["environment"])
    os.umask(0o022)  # the service user is to read what root installs
    own = module.params["method"] == "wheels"
    lacking = [name for name in ("lock", "uv", "cache_path") if module.params[name] is None]
    if own and module.params["state"] == "present" and lacking:
        module.fail_json(msg=f"method is wheels but the following are missing: {', '.join(lacking)}", findings=[])
    home = str(toolkits.home(module.params["path"])) if own else os.path.normpath(module.params["home"])
    module.exit_json(**(present if module.params["state"] == "present" else absent)(module, home))


if __name__ == "__main__":
    main()
