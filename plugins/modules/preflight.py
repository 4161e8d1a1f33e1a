#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a node before anything on it is changed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Judge a node before anything on it is changed
description:
  - Reads the node's distribution, C library, Python, free disk space, listeners on the instance's port, installed
    releases and the model's files, and, as M(inference.sglang.gpu_info) does, driver, GPUs, links, PCI bridges, kernel
    and limits; and judges all of them against the settings.
  - Reads only, and fails with all errors at once, one a line.
author: The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes.info
options:
  release:
    description: SGLang version that will be installed.
    type: str
    required: true
  python:
    description: Interpreter that the release will be installed with.
    type: path
    default: /usr/bin/python3
  python_version:
    description: Minor version that O(python) is taken for; a node where it has another is refused.
    type: str
    default: ""
  locks:
    description: Digest of the release's lock by Python minor version, to tell what is installed or cached already.
    type: dict
    default: {}
  releases_path:
    description: Folder of the installed releases.
    type: path
    required: true
  cache_path:
    description: Folder of the wheel cache.
    type: path
    required: true
  toolkit:
    description: Folder of the CUDA toolkit that will be used.
    type: path
    required: true
  toolkit_lock:
    description: Digest of the toolkit's lock, to tell whether its wheels are cached already.
    type: str
    default: ""
  instance:
    description: Name of the instance, whose own unit may hold the port.
    type: str
    default: default
  host:
    description: Address that the server will listen on.
    type: str
    default: 127.0.0.1
  port:
    description: TCP port that the server will listen on.
    type: int
    default: 30000
  model:
    description:
      - Folder of the model, which must be there, readable, and hold a C(config.json).
      - Left out where a role makes the model.
    type: str
    default: ""
  user:
    description: User that the server will run as; it need not exist yet.
    type: str
    default: sglang
  gpu_required:
    description: Whether a node without an NVIDIA GPU is an error.
    type: bool
    default: true
  cpu_engine:
    description: Whether the stand-in for a driver will be used, which a node with a driver refuses.
    type: bool
    default: false
  packages:
    description: Debian packages to look up.
    type: list
    elements: str
    default: []
  unit_paths:
    description: Paths that the instance's sandboxed unit must reach, by the setting that names them.
    type: dict
    default: {}
  model_download:
    description: Folder that a role will fetch the model into, which needs room.
    type: str
    default: ""
  model_size_gb:
    description: Size of that model; 0 where it is not known.
    type: float
    default: 0
  model_wanted:
    description:
      - What is to be fetched into O(model_download), by C(source) and the options of M(inference.sglang.model_weights)
        that tell models apart. What is there and was fetched as something else is an error.
    type: dict
    default: {}
  model_waived:
    description: Ids of findings about the model's files that other settings make void.
    type: list
    elements: str
    default: []
  cuda_home:
    description:
      - A CUDA toolkit that is there already and will be used. Left out where a role brings it.
      - Its compiler is run, to tell its version.
    type: str
    default: ""
  cuda_version:
    description: CUDA version that O(cuda_home) must be of; that of the release if omitted.
    type: str
    default: ""
  cuda_architecture:
    description: Architecture that a proof of O(cuda_home) will be compiled for, as nvcc names it.
    type: str
    default: ""
  p2p_fallback:
    description: Whether the instance does without direct access between GPUs, so that what hinders it is no error.
    type: bool
    default: false
  driver_managed:
    description: Whether a role installs the driver afterwards, so that a missing or wrong one is no error.
    type: bool
    default: false
  gpus:
    description:
      - Numbers of the GPUs that the instance may use, as nvidia-smi counts them. All of them where it is empty.
      - What others are set to, and who uses them, is not judged.
    type: list
    elements: int
    default: []
  boot_managed:
    description: Whether a role writes boot parameters afterwards, so that what they mend is no error.
    type: bool
    default: false
  accepted:
    description: Ids of errors about hardware or weights that are told as warnings.
    type: list
    elements: str
    default: []
  recorded:
    description:
      - What this module returned as RV(facts) on a node, or a report with it. It is judged, and nothing is read.
      - The text of a file with such JSON is taken as well.
    type: raw
seealso:
  - module: inference.sglang.gpu_info
  - module: inference.sglang.validate_settings
"""

EXAMPLES = r"""
- name: Find the node fit
  inference.sglang.preflight:
    release: 0.5.12.post1
    releases_path: /opt/sglang/releases
    cache_path: /opt/sglang/cache
    toolkit: /opt/sglang/toolkits/13.0-0a1b2c3d
    model: /var/lib/sglang/models/kimi-k2.6

- name: Let a node without a GPU through
  inference.sglang.preflight:
    release: 0.5.12.post1
    releases_path: /opt/sglang/releases
    cache_path: /opt/sglang/cache
    toolkit: /opt/sglang/toolkits/13.0-0a1b2c3d
    gpu_required: false
"""

RETURN = r"""
ok:
  description: Whether no finding is an error.
  returned: always
  type: bool
  sample: true
facts:
  description: What was read.
  returned: always
  type: dict
  contains:
    hardware:
      description: As RV(inference.sglang.gpu_info#module:hardware).
      type: dict
      returned: always
    node:
      description: The rest.
      type: dict
      returned: always
      contains:
        distribution:
          description: C(ID) of os-release.
          type: str
          returned: always
          sample: debian
        distribution_version:
          description: C(VERSION_ID) of os-release.
          type: str
          returned: always
          sample: "12"
        architecture:
          description: Machine name of the kernel.
          type: str
          returned: always
          sample: x86_64
        glibc:
          description: Version of the GNU C library; empty where there is none.
          type: str
          returned: always
          sample: "2.36"
        python:
          description: Minor version of the interpreter O(python); empty where it does not answer.
          type: str
          returned: always
          sample: "3.11"
        gpus:
          description: NVIDIA GPUs on the PCI bus, by C(address) and C(device) id.
          type: list
          elements: dict
          returned: always
          sample: [{"address": "0000:01:00.0", "device": "0x2bb5"}]
        driver:
          description: First line of C(/proc/driver/nvidia/version); empty where no driver is loaded.
          type: str
          returned: always
          sample: ""
        driver_library:
          description: Path of an installed C(libcuda.so.1); empty where there is none.
          type: str
          returned: always
          sample: ""
        spaces:
          description: C(mount), C(device) and C(free_bytes) of each folder that will be written to, by its path.
          type: dict
          returned: always
        listeners:
          description: Sockets that listen on O(port), with C(address), C(pid), C(command) and systemd C(unit).
          type: list
          elements: dict
          returned: always
          sample: []
        packages:
          description: Versions of those O(packages) that are installed.
          type: dict
          returned: always
          sample: {"gcc": "4:12.2.0-3"}
        releases:
          description: Complete release folders, by C(folder), C(version) and C(lock).
          type: list
          elements: dict
          returned: always
          sample: []
        cached_locks:
          description: Digests of the locks whose wheels the cache holds.
          type: list
          elements: str
          returned: always
          sample: []
        toolkit_installed:
          description: Whether O(toolkit) holds a complete toolkit.
          type: bool
          returned: always
          sample: false
        model:
          description: What O(model) is, its number of files, and what keeps O(user) from reading them.
          type: dict
          returned: always
        hidden:
          description: Those of O(unit_paths) that the unit's sandbox hides, by C(setting), C(path) and C(target).
          type: list
          elements: dict
          returned: always
          sample: []
        systemd:
          description: Whether systemd is the init that runs.
          type: bool
          returned: always
          sample: true
        python_headers:
          description: Whether O(python) has its C(Python.h); null where it does not answer.
          type: bool
          returned: always
          sample: true
        numa_library:
          description: Whether C(libnuma.so.1) is installed.
          type: bool
          returned: always
          sample: true
        model_stored:
          description: Bytes that lie in O(model_download).
          type: int
          returned: always
          sample: 0
        download:
          description:
            - What lies in O(model_download), and how it differs from what was fetched there; null where nothing does.
          type: dict
          returned: always
        login:
          description: The account O(user) of C(/etc/passwd), by C(name), C(uid) and C(shell); null where there is none.
          type: dict
          returned: always
    toolkit:
      description: What lies at O(cuda_home), which is C(home); null where that is left out. Older records lack it.
      type: dict
      returned: always
findings:
  description: What is wrong or worth knowing.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Stable name, C(room.fault).
      type: str
      returned: always
      sample: port.taken
    severity:
      description: C(error), C(warning) or C(info).
      type: str
      returned: always
      sample: error
    seen:
      description: What was read.
      type: str
      returned: always
      sample: Port 30000 on 0.0.0.0 is held by process 812 (nginx) of nginx.service, not by sglang-default.service
    remedy:
      description: What to do.
      type: str
      returned: always
      sample: Stop that service, or set sglang_server_port to a free port
    source:
      description: Where the judgement comes from; may be empty.
      type: str
      returned: always
      sample: /proc/net/tcp
"""

import json
import os
from dataclasses import asdict, fields

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import (
    node,
    readings,
    releases,
    rules,
    toolkits,
)
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_dicts, as_text, errors
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Hardware
from ansible_collections.inference.sglang.plugins.module_utils.settings import NodeSettings
from ansible_collections.inference.sglang.plugins.module_utils.toolkit_rules import Tree


def toolkit_of(settings: NodeSettings) -> dict | None:
    """What lies at the folder of a toolkit that is there, with that folder."""
    if not settings.cuda_home:
        return None
    home, account = os.path.normpath(settings.cuda_home), node.account_of(settings.user)
    return {"home": home, **asdict(toolkits.read(home, account.uid, tuple(account.gids)))}


def tree_of(settings: NodeSettings, read: dict | None) -> Tree | None:
    """A reading of a toolkit, or a record of one, if it is of the folder that is judged. Raises TypeError."""
    if not read or not settings.cuda_home or read.get("home") != os.path.normpath(settings.cuda_home):
        return None
    made = {name: tuple(it) if isinstance(it, list) else it for name, it in read.items() if name != "home"}
    return Tree(**made)


def facts_of(module: AnsibleModule, settings: NodeSettings) -> tuple[node.NodeFacts, Hardware, dict | None]:
    """What is judged: the node, or what was recorded of one."""
    recorded = module.params["recorded"]
    if recorded is None:
        return node.read(settings), readings.read(), toolkit_of(settings)
    try:
        values = json.loads(recorded) if isinstance(recorded, str) else recorded
        facts = values.get("facts", values)
        tree_of(settings, facts.get("toolkit"))
        return (
            node.NodeFacts.from_dict(facts["node"], node.written(settings)),
            Hardware.from_dict(facts["hardware"]),
            facts.get("toolkit"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        module.fail_json(
            msg=f"recorded is not what this module returned as facts ({type(error).__name__}: {error}); "
            "write it with preflight_report"
        )


def main() -> None:
    """Read the node, judge it, and say so."""
    module = AnsibleModule(
        argument_spec={
            "release": {"type": "str", "required": True},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "python_version": {"type": "str", "default": ""},
            "locks": {"type": "dict", "default": {}},
            "releases_path": {"type": "path", "required": True},
            "cache_path": {"type": "path", "required": True},
            "toolkit": {"type": "path", "required": True},
            "toolkit_lock": {"type": "str", "default": ""},
            "instance": {"type": "str", "default": "default"},
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 30000},
            "model": {"type": "str", "default": ""},
            "user": {"type": "str", "default": "sglang"},
            "gpu_required": {"type": "bool", "default": True},
            "cpu_engine": {"type": "bool", "default": False},
            "packages": {"type": "list", "elements": "str", "default": []},
            "unit_paths": {"type": "dict", "default": {}},
            "model_download": {"type": "str", "default": ""},
            "model_size_gb": {"type": "float", "default": 0},
            "model_wanted": {"type": "dict", "default": {}},
            "model_waived": {"type": "list", "elements": "str", "default": []},
            "cuda_home": {"type": "str", "default": ""},
            "cuda_version": {"type": "str", "default": ""},
            "cuda_architecture": {"type": "str", "default": ""},
            "p2p_fallback": {"type": "bool", "default": False},
            "driver_managed": {"type": "bool", "default": False},
            "boot_managed": {"type": "bool", "default": False},
            "gpus": {"type": "list", "elements": "int", "default": []},
            "accepted": {"type": "list", "elements": "str", "default": []},
            "recorded": {"type": "raw"},
        },
        supports_check_mode=True,
    )
    named = {field.name: module.params[field.name] for field in fields(NodeSettings) if field.name in module.params}
    lists = {name: tuple(module.params[name]) for name in ("accepted", "gpus", "model_waived", "packages")}
    settings = NodeSettings(**{**named, **lists})
    findings = releases.check(settings.release)
    facts, hardware, toolkit = facts_of(module, settings)
    tree = tree_of(settings, toolkit)
    findings = findings or rules.judge(settings, facts, releases.RELEASES[settings.release], hardware, tree)
    wrong = errors(findings)
    read = {"node": facts.as_dict(), "hardware": hardware.to_dict(), "toolkit": toolkit}
    result = {"changed": False, "ok": not wrong, "facts": read, "findings": as_dicts(findings)}
    if wrong:
        name = os.uname().nodename if module.params["recorded"] is None else "The recorded node"
        module.fail_json(msg=f"{name} is not fit, nothing was changed:\n{as_text(wrong)}", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
