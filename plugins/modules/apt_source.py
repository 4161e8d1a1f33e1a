#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_source
short_description: Make one owner of NVIDIA's apt repository
description:
  - Writes one source with a key of its own, after the key's fingerprint was found among those accepted; a priority for
    the repository; and a proxy for it alone.
  - Disables every other entry for the same repository, whatever its scheme, options and file, and the preferences that
    NVIDIA's keyring package and old roles leave. What a file held is kept beside it and can be put back.
  - Reads the package lists of this source alone, with its signature, where anything changed or they are missing. If
    apt refuses them, every file is put back as it was.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
attributes:
  diff_mode:
    support: full
options:
  state:
    description: Whether the source is ours, or everything is as it was before.
    type: str
    choices: [present, absent]
    default: present
  url:
    description: URL of the repository.
    type: str
    default: ""
  suite:
    description: The suite; V(/) for a repository without suites.
    type: str
    default: /
  components:
    description: Components of the suite.
    type: list
    elements: str
    default: []
  architectures:
    description: Architectures; those of the node where there are none.
    type: list
    elements: str
    default: []
  key:
    description:
      - The public key as text, in armour; in base64 after C(base64:); or an https URL.
      - A URL is asked only where no accepted key is installed.
    type: str
    default: ""
  key_fingerprints:
    description: Fingerprints of the keys that are accepted.
    type: list
    elements: str
    default: []
  proxy:
    description: Proxy for this repository alone.
    type: str
    default: ""
  pin:
    description: What the repository is known by in preferences, as apt_preferences(5) writes it.
    type: str
    default: release l=NVIDIA CUDA
  priority:
    description: Priority of the repository's packages.
    type: int
    default: 100
"""

EXAMPLES = r"""
- name: Own the source
  inference.sglang.apt_source:
    url: https://mirror.example.com/cuda/debian12/x86_64/
    key: "{{ lookup('ansible.builtin.file', 'cuda.asc') }}"
    key_fingerprints:
      - EB693B3035CD5710E231E123A4B469963BF863CC

- name: Put back what was there
  inference.sglang.apt_source:
    state: absent
"""

RETURN = r"""
source:
  description: The file of the source.
  returned: success
  type: str
  sample: /etc/apt/sources.list.d/inference-sglang-cuda.sources
fingerprints:
  description: Of the keys that are trusted.
  returned: success
  type: list
  elements: str
disabled:
  description: Lines of others that were disabled by this run, or with O(state=absent) put back, by file.
  returned: success
  type: dict
findings:
  description: What is wrong or worth knowing.
  returned: always
  type: list
  elements: dict
"""

import base64
import binascii
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import fetch_url
from ansible_collections.inference.sglang.plugins.module_utils import apt, apt_files, apt_install, credentials
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_dicts


def key_packets(module: AnsibleModule) -> bytes | None:
    """The packets of the key, judged; None where the key that is installed stays, or nobody asks."""
    given, accepted = module.params["key"].strip(), module.params["key_fingerprints"]
    installed = apt_files.read(apt.KEYRING)
    trusted = installed is not None and not apt.judge_key(apt.KeyCheck.of(apt.KEYRING, installed, accepted))
    name = "cuda_repository_key"
    apt_install.stop(module.fail_json, apt.key_given(given))
    if apt.is_url(given):
        if trusted or module.check_mode:
            apt_install.stop(module.fail_json, [*apt.fingerprint_form(apt.KeyCheck.of(name, b"", accepted))])
            return None
        name, material = given, fetched(module, given)
    else:
        try:
            material = (
                base64.b64decode(given.removeprefix("base64:"), validate=True)
                if given.startswith("base64:")
                else given.encode()
            )
        except binascii.Error as error:
            material = b""
            apt_install.stop(module.fail_json, apt.judge_key(apt.KeyCheck(name, tuple(accepted), problem=str(error))))
    try:
        packets = apt.binary(material)
    except ValueError as problem:
        packets = b""
        apt_install.stop(module.fail_json, apt.judge_key(apt.KeyCheck(name, tuple(accepted), problem=str(problem))))
    apt_install.stop(module.fail_json, apt.judge_key(apt.KeyCheck.of(name, packets, accepted)))
    return packets


def fetched(module: AnsibleModule, url: str) -> bytes:
    """What lies at a URL, through the repository's proxy."""
    if module.params["proxy"]:
        os.environ["https_proxy"] = module.params["proxy"]
    response, info = fetch_url(module, url, timeout=30)
    if response is None or info["status"] != 200:
        seen = f"{url} cannot be read: {info['msg']}"
        remedy = "Let the node reach it, or give cuda_repository_key as a file on the controller"
        apt_install.stop(module.fail_json, [Finding("apt_key.unreachable", "error", seen, remedy)])
    return response.read()


def lists_are_there(module: AnsibleModule) -> bool:
    """Whether apt holds package lists of our source."""
    folder = "/var/lib/apt/lists"
    return apt_install.lists_are_there(module.run_command, os.listdir(folder) if os.path.isdir(folder) else [])


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "url": {"type": "str", "default": ""},
            "suite": {"type": "str", "default": "/"},
            "components": {"type": "list", "elements": "str", "default": []},
            "architectures": {"type": "list", "elements": "str", "default": []},
            "key": {"type": "str", "default": "", "no_log": False},
            "key_fingerprints": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "proxy": {"type": "str", "default": "", "no_log": True},
            "pin": {"type": "str", "default": "release l=NVIDIA CUDA"},
            "priority": {"type": "int", "default": 100},
        },
        supports_check_mode=True,
    )
    # A proxy without a password is no secret, and blanking it would blank parts of the URL as well.
    given = {name: module.params[name] for name in ("proxy", "key") if apt.is_url(module.params[name])}
    module.no_log_values = credentials.secrets(given)
    module.run_command_environ_update = apt_install.LOCALE
    present = module.params["state"] == "present"
    if present:
        apt_install.stop(module.fail_json, apt.judge_url(module.params["url"]))
        repository = apt.Repository(
            module.params["url"],
            module.params["suite"],
            tuple(module.params["components"]),
            tuple(module.params["architectures"]),
        )
        preferences = repository.preferences(module.params["pin"], module.params["priority"])
        plan = apt_files.own(repository, key_packets(module), preferences, module.params["proxy"])
    else:
        plan = apt_files.restore()
    changed = bool(plan.files)
    result = {"changed": changed, "source": apt.SOURCE, "disabled": plan.disabled}
    if module._diff:
        result["diff"] = apt_files.diff(plan.files)
    if not module.check_mode:
        before = apt_files.write(plan.files)
        if present and (changed or not lists_are_there(module)):
            refused = apt_install.update(module.run_command)
            if refused:
                apt_files.write(before)
                plan.findings += refused
                apt_install.stop(module.fail_json, plan.findings)
    keyring = apt_files.read(apt.KEYRING)
    result["fingerprints"] = [key.fingerprint for key in apt.keys(keyring)] if keyring and present else []
    module.exit_json(findings=as_dicts(plan.findings), **result)


if __name__ == "__main__":
    main()
