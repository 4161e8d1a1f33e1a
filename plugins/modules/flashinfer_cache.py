#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: flashinfer_cache
short_description: Compile kernels into a release's kernel cache
description:
  - Compiles the named kernels of FlashInfer and of SGLang with the given toolkit, as the user that serves, and checks
    that each library holds machine code for the architecture. Needs no GPU and downloads nothing.
  - Runs as many compilers at a time as the node has processors, and memory for (E(MAX_JOBS)), unless O(environment)
    says how many.
  - A kernel that cannot be compiled fails the module and leaves the others in the cache. A name that the release has
    not fails before anything is compiled.
  - Refuses a release whose FlashInfer is not the version of its lock.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  release_path:
    description: The release's folder.
    type: path
    required: true
  cache_path:
    description: The kernel cache. Belongs to O(user).
    type: path
    required: true
  modules:
    description:
      - The kernels to compile, a FlashInfer module (V(sampling)) or a kernel of SGLang's own with its template
        arguments (V(activation(bfloat16\))).
    type: list
    elements: str
    required: true
  architectures:
    description:
      - What to compile for, as E(FLASHINFER_CUDA_ARCH_LIST) takes it. SGLang's own kernels take one architecture only.
    type: str
    required: true
  version:
    description: The FlashInfer version of the lock.
    type: str
    required: true
  environment:
    description: The unit's environment.
    type: dict
    required: true
  user:
    description: The user that serves.
    type: str
    required: true
  build_script:
    description: Python source that compiles the kernels named in its arguments.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Compile what samples, and the MLP's activation
  inference.sglang.flashinfer_cache:
    release_path: /opt/sglang/releases/0.5.12.post1-0a1b2c3d-none
    cache_path: /var/cache/sglang/0.5.12.post1-0a1b2c3d-none-13.0-4e5f6a7b
    modules:
      - sampling
      - activation(bfloat16)
    architectures: 12.0f
    version: 0.6.11.post1
    environment: "{{ plan.environment }}"
    user: sglang
    build_script: "{{ lookup('ansible.builtin.file', 'build_modules.py') }}"
"""

RETURN = r"""
libraries:
  description: Kernel to its library and the architectures that it holds. Empty in check mode on a node that lacks them.
  returned: success
  type: dict
compiled:
  description: The kernels that this call compiled, or would compile in check mode.
  returned: success
  type: list
  elements: str
  sample: [sampling]
seconds:
  description: How long each of them took. Empty in check mode.
  returned: success
  type: dict
  sample: {"sampling": 83.3}
"""

import os
import re
import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import cubins, kernel_builds, plan, wheels


def make_folder(cache: Path, user: str) -> None:
    """Make the cache's folder: whatever compiles or caches needs it, from the launch check on. Raises InstallError."""
    cache.mkdir(parents=True, exist_ok=True)
    try:
        shutil.chown(cache, user, user)
    except LookupError as unknown:
        raise wheels.InstallError(f"{unknown}: the sglang role makes the user, with a group of its name") from unknown


def out_of_ram(jobs: object) -> str:
    """What to do where a compiler was ended for want of memory, which looks like any other failure."""
    return (
        f" the compiler ran out of RAM, of {jobs} at a time. Set MAX_JOBS to less in sglang_server_environment, or "
        "free memory on the node; this is no fault of a GPU"
    )


def build(module: AnsibleModule, missing: list[str]) -> tuple[dict, dict, list[str]]:
    """Compile what is missing: libraries, seconds, and what went wrong. Raises InstallError where nothing was tried."""
    parameters = module.params
    given = parameters["environment"]
    cpus, meminfo = len(os.sched_getaffinity(0)), Path("/proc/meminfo").read_text(encoding="utf-8")
    variables = {**kernel_builds.environment(given, cpus, meminfo), **given}
    status, output, error = module.run_command(
        [*plan.as_user(parameters["user"]), f"{parameters['release_path']}/bin/python", "-", *missing],
        expand_user_and_vars=False,
        data=parameters["build_script"],
        environ_update={name: str(value) for name, value in variables.items()},
        cwd=parameters["cache_path"],
    )
    try:
        report = wheels.report(output)
    except wheels.InstallError as nothing:
        words = (output + error).strip()[-3000:]
        ram = out_of_ram(variables["MAX_JOBS"]) if kernel_builds.killed(words, status) else ""
        raise wheels.InstallError(f"Nothing was compiled of {', '.join(missing)}:{ram}\n{words}") from nothing
    wanted = {int(re.sub(r"\D", "", item)) for item in parameters["architectures"].split()}
    libraries = {}
    wrong = [
        f"{name} could not be compiled, with MAX_JOBS={variables['MAX_JOBS']}:"
        f"{out_of_ram(variables['MAX_JOBS']) if kernel_builds.killed(words) else ''}\n{words}"
        for name, words in report.get("failed", {}).items()
    ]
    for name, path in report["libraries"].items():
        held = cubins.architectures(Path(path).read_bytes())
        if wanted <= held:
            libraries[name] = {"path": path, "architectures": sorted(held)}
        else:
            wrong.append(f"{path} holds code for {sorted(held)}, not for {sorted(wanted)}: check cuda_toolkit_home")
    return libraries, report.get("seconds", {}), wrong


def main():
    module = AnsibleModule(
        argument_spec={
            "release_path": {"type": "path", "required": True},
            "cache_path": {"type": "path", "required": True},
            "modules": {"type": "list", "elements": "str", "required": True},
            "architectures": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "environment": {"type": "dict", "required": True},
            "user": {"type": "str", "required": True},
            "build_script": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    release = wheels.read_manifest(parameters["release_path"])
    if release is None and not module.check_mode:
        module.fail_json(msg=f"No complete release lies in {parameters['release_path']}: run the sglang role first")
    found = release["versions"].get("flashinfer-python") if release else parameters["version"]
    if found != parameters["version"]:
        module.fail_json(
            msg=f"FlashInfer is {found}, the release table says {parameters['version']}: make the lock again"
        )
    cache = wheels.read_manifest(parameters["cache_path"]) or {}
    libraries = {
        name: library
        for name, library in cache.get("libraries", {}).items()
        if cache.get("built_for") == parameters["architectures"] and Path(library["path"]).exists()
    }
    missing = [name for name in parameters["modules"] if name not in libraries]
    folder = Path(parameters["cache_path"])
    changed = bool(missing) or not folder.is_dir()
    seconds, wrong = {}, []
    if changed and not module.check_mode:
        os.umask(0o022)  # whatever it is for root
        try:
            make_folder(folder, parameters["user"])
            if missing:
                built, seconds, wrong = build(module, missing)
                libraries.update(built)
        except (wheels.InstallError, OSError) as failure:
            module.fail_json(msg=str(failure))
        # With those that a failure leaves, so that the next run compiles only what failed.
        wheels.write_manifest(
            parameters["cache_path"], {"built_for": parameters["architectures"], "libraries": libraries}
        )
    if wrong:
        module.fail_json(msg="\n".join(wrong))
    module.exit_json(changed=changed, libraries=libraries, compiled=missing, seconds=seconds)


if __name__ == "__main__":
    main()
