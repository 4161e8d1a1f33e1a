#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_release
short_description: Install one SGLang release from its lock, patched and verified
description:
  - Makes a virtual environment that holds exactly the wheels of a lock, applies patches by hash, imports the release
    in its own interpreter, compares what it finds with the lock and its flags with O(flags), and only then writes
    C(manifest.json).
  - A folder with a manifest is complete and is never changed. One without is completed, from where it was interrupted.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  version:
    description: The SGLang version that the lock holds.
    type: str
    required: true
  path:
    description: The release's folder. Name it with the filter P(inference.sglang.release_name#filter).
    type: path
    required: true
  lock:
    description: The lock's text, one pip requirement with sha256 hashes a distribution.
    type: str
    required: true
  cuda:
    description: The CUDA version that PyTorch must be built for.
    type: str
    required: true
  python:
    description: The interpreter that the environment is made of.
    type: path
    default: /usr/bin/python3
  python_version:
    description: Minor version of O(python).
    type: str
    required: true
  patches:
    description: Patch definitions, as for M(inference.sglang.source_patch).
    type: list
    elements: dict
    default: []
  flags:
    description:
      - The release's flag table as this collection ships it, JSON.
      - The release's own parser and its installed sources must agree with it.
    type: str
    required: true
  import_script:
    description: Python source that imports the release and reports it as a line of JSON.
    type: str
    required: true
  uv:
    description: The uv program.
    type: path
    required: true
  cache_path:
    description: The wheel cache of uv. On one mount with O(path), files are hard links.
    type: path
    required: true
  environment:
    description: Environment for uv, such as E(UV_DEFAULT_INDEX) or a proxy. Never logged.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Install the release of the story
  inference.sglang.sglang_release:
    version: 0.5.12.post1
    path: /opt/sglang/releases/0.5.12.post1-0a1b2c3d-none
    lock: "{{ lookup('ansible.builtin.file', 'locks/0.5.12.post1-py3.11.txt') }}"
    cuda: "13.0"
    python_version: "3.11"
    flags: "{{ lookup('ansible.builtin.file', 'flags/0.5.12.post1.json') }}"
    import_script: "{{ lookup('ansible.builtin.file', 'import_release.py') }}"
    uv: /opt/sglang/uv/0.13.9/bin/uv
    cache_path: /opt/sglang/cache
"""

RETURN = r"""
path:
  description: The release's folder.
  returned: success
  type: str
manifest:
  description: What the folder holds. Empty in check mode on a node that lacks it.
  returned: success
  type: dict
  contains:
    version:
      description: The SGLang version.
      type: str
    python:
      description: Minor version of its interpreter.
      type: str
    lock:
      description: Digest of the lock.
      type: str
    versions:
      description: Distribution name to version, as found.
      type: dict
    torch_cuda:
      description: The CUDA version that PyTorch is built for.
      type: str
    flags:
      description: Number of flag spellings that the release's own parser knows.
      type: int
    patches:
      description: One entry a patch, with its id, outcome, file and the file's sha256.
      type: list
      elements: dict
    patch_set:
      description: Digest of the patches that change the release, V(none) where none does.
      type: str
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import (
    credentials,
    flag_sources,
    installs,
    patches,
    wheels,
)
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_text, errors
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable


def apply_patches(module: AnsibleModule) -> list[dict[str, str]]:
    """Apply every definition; what became of each. Raises InstallError where one cannot be applied."""
    folder, version = module.params["path"], module.params["version"]
    packages = installs.site_packages(folder, module.params["python_version"])
    states = []
    for definition in module.params["patches"]:
        patch = patches.from_mapping(definition)
        python, cache = Path(folder) / "bin" / "python", Path(module.params["cache_path"])
        report = patches.converge(patch, packages, version, "present", python=python, cache=cache)
        if errors(report.findings):
            raise wheels.InstallError(as_text(report.findings))
        states.append({"id": patch.id, "outcome": report.name, "file": str(report.path), "sha256": report.sha256})
    return states


def judge_flags(module: AnsibleModule, parser: FlagTable) -> list[Finding]:
    """Compare the shipped flag table with the release's parser and with its sources as they lie there."""
    shipped = FlagTable.from_json(module.params["flags"])
    sources = installs.site_packages(module.params["path"], module.params["python_version"]) / "sglang"
    try:
        read = flag_sources.read_sources(sources)
    except (OSError, ValueError) as failure:
        raise wheels.InstallError(f"The flags cannot be read from {sources}: {failure}") from failure
    return [
        *installs.judge_flags(parser, shipped, "The parser"),
        *installs.judge_flags(read, shipped, f"{sources}"),
    ]


def difference(wanted: dict, manifest: dict) -> str:
    """In which way a complete release is another than the wanted one; empty where it is that one."""
    if manifest.get("version") != wanted["version"]:
        return f"SGLang {manifest.get('version')}, not {wanted['version']}"
    if manifest.get("lock") != (digest := wheels.digest(wanted["lock"])):
        return f"the wheels of lock {manifest.get('lock')}, not of {digest}"
    wanted_set = patches.digest(map(patches.from_mapping, wanted["patches"]), wanted["version"])
    # A patch that does not change the release is in no digest, so it may come and go.
    if (recorded := manifest.get("patch_set", wanted_set)) != wanted_set:
        return f"patch set {recorded}, not {wanted_set}"
    return ""


def install(module: AnsibleModule) -> dict:
    """Install, patch, import and compare; the manifest. Raises InstallError."""
    path, lock, version = (module.params[name] for name in ("path", "lock", "version"))

    def run(argv, environment):
        return module.run_command(
            argv, environ_update=dict(environment), expand_user_and_vars=False, handle_exceptions=False
        )

    installer = wheels.Installer(module.params["uv"], module.params["cache_path"], module.params["environment"], run)
    installer.install_environment(lock, path, module.params["python"])
    states = apply_patches(module)
    status, output, error = module.run_command(
        [f"{path}/bin/python", "-c", module.params["import_script"]], expand_user_and_vars=False
    )
    if status != 0:
        raise wheels.InstallError(f"SGLang {version} in {path} does not import:\n{error.strip()[-2000:]}")
    report = wheels.report(output)
    parser = flag_sources.read_parser(report["flags"])
    findings = installs.judge(report, lock, version, module.params["cuda"])
    if findings := errors([*findings, *judge_flags(module, parser)]):
        raise wheels.InstallError(as_text(findings))
    manifest = {
        "version": version,
        "python": module.params["python_version"],
        "lock": wheels.digest(lock),
        "versions": report["versions"],
        "torch_cuda": report["torch_cuda"],
        "flags": len(parser),
        "patches": states,
        "patch_set": patches.digest(map(patches.from_mapping, module.params["patches"]), version),
    }
    wheels.write_manifest(path, manifest)
    return manifest


def main():
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "lock": {"type": "str", "required": True},
            "cuda": {"type": "str", "required": True},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "python_version": {"type": "str", "required": True},
            "patches": {"type": "list", "elements": "dict", "default": []},
            "flags": {"type": "str", "required": True},
            "import_script": {"type": "str", "required": True},
            "uv": {"type": "path", "required": True},
            "cache_path": {"type": "path", "required": True},
            "environment": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    # no_log keeps the argument out of logs. In results it would blank every "1" that the environment holds as well.
    module.no_log_values = credentials.secrets(module.params["environment"])
    os.umask(0o022)  # the service user is to read what root installs
    manifest = wheels.read_manifest(module.params["path"])
    changed = manifest is None
    try:
        differs = difference(module.params, manifest) if manifest is not None else ""
    except patches.DefinitionError as failure:
        module.fail_json(msg=str(failure))
    if differs:
        held = f"{module.params['path']} holds {differs}"
        module.fail_json(msg=f"{held}, and an installed release is never changed: name another folder")
    if changed and not module.check_mode:
        try:
            with wheels.alone(module.params["path"]):
                manifest = wheels.read_manifest(module.params["path"]) or install(module)
        except (wheels.InstallError, patches.DefinitionError, OSError) as failure:
            module.fail_json(msg=str(failure))
    module.exit_json(changed=changed, path=module.params["path"], manifest=manifest or {})


if __name__ == "__main__":
    main()
