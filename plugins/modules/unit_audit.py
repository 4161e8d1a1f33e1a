#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_audit
short_description: Judge a systemd unit that runs SGLang, whoever wrote it
description:
  - Reads a unit with its drop-ins and the files of its EnvironmentFile=, and reports what is wrong with its flags, its
    environment and the service around them, for the SGLang, the model and the GPUs that it runs on.
  - Changes nothing. Secrets are not returned.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes.info
options:
  unit:
    description:
      - Name of the unit, or path of its file.
      - Drop-ins of a name are looked for in systemd's folders, those of a path beside it.
    type: str
    required: true
  release:
    description: The SGLang version that it runs. By default that of the virtual environment in ExecStart=.
    type: str
  flag_table:
    description:
      - The flags of that version, as M(inference.sglang.release_info) returns them.
      - By default they are read from the SGLang in that virtual environment.
    type: list
    elements: dict
  patches:
    description: Ids of the patches that are in force. By default the files of that SGLang are looked at.
    type: list
    elements: str
  model_path:
    description: Folder of the model. By default that of the unit's own flag.
    type: path
  capability:
    description: Compute capability of the GPUs times ten, as V(120) for an RTX PRO 6000 or V(90) for an H200.
    type: int
  gpus:
    description: Number of GPUs of the node.
    type: int
  nodes:
    description: Number of nodes that the instance runs on.
    type: int
  links:
    description: What the GPUs of the node are linked by.
    type: str
    choices: [pcie, nvlink]
  concurrency:
    description: Requests at a time that it is meant for.
    type: int
  planned:
    description: Text of the unit that would stand in its place.
    type: str
"""

EXAMPLES = r"""
- name: Judge the unit that someone wrote by hand
  inference.sglang.unit_audit:
    unit: kimi.service
    capability: 120
    gpus: 8
    links: pcie
  register: audited

- name: Show what is wrong
  ansible.builtin.debug:
    msg: "{{ audited.findings | map(attribute='seen') }}"
"""

RETURN = r"""
findings:
  description: What is wrong, each with C(id), C(severity), C(seen), C(remedy) and C(source).
  returned: success
  type: list
  elements: dict
files:
  description: The files that were read, in systemd's order.
  returned: success
  type: list
  elements: str
release:
  description: The SGLang version that was judged by. Empty where it is not known.
  returned: success
  type: str
patches:
  description: Ids of the patches that are in force. None where nobody could look.
  returned: success
  type: list
  elements: str
model:
  description: The model's architecture. Empty where it is not known.
  returned: success
  type: str
interpreter:
  description: What runs SGLang. Empty where no SGLang was found in ExecStart=.
  returned: success
  type: str
difference:
  description:
    - The unit against O(planned), as a unified diff of both in one form, in which each flag is a line of its own.
    - Empty where they say the same, or nothing is planned.
  returned: success
  type: list
  elements: str
flags:
  description: SGLang's flags by their exact names. Secrets are C(***).
  returned: success
  type: dict
environment:
  description: The variables in force. Secrets are C(***).
  returned: success
  type: dict
settings:
  description: Settings of the service, every value in force. Environment=, SetCredential= and commands are left out.
  returned: success
  type: dict
"""

import json
import os
import pwd
import shutil
from dataclasses import replace
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import audit, installed, models
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_dicts
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable
from ansible_collections.inference.sglang.plugins.module_utils.launch_rules import Launch


def flag_table(given: list[dict] | None, venv: Path | None) -> FlagTable:
    """The flags that are given, or those of the SGLang in a folder; none where neither is there."""
    if given:
        return FlagTable.from_json(json.dumps(given))
    try:
        return installed.flag_table(venv) if venv else FlagTable([])
    except (OSError, ValueError, SyntaxError):
        return FlagTable([])


def read_model(folder: str, quantization: str) -> tuple[models.Shape | None, str, list]:
    """A model's shape where it can be told, its architecture, and what is worth knowing about it."""
    try:
        shape, findings = models.load(Path(folder), quantization)
    except models.ModelError as error:
        try:
            config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
            return None, str(config["architectures"][0]), list(error.findings)
        except (OSError, ValueError, LookupError, TypeError):
            return None, "", list(error.findings)
    return shape, shape.architecture, findings


def host(service: audit.Service) -> audit.Host:
    """What the unit would find on this node."""
    user = service.last("User", "root")
    try:
        home = (pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)).pw_dir
    except (KeyError, ValueError, OverflowError):
        home = ""
    search = os.pathsep.join(service.path)
    toolkit = service.environment.get("CUDA_HOME") or service.environment.get("CUDA_PATH") or "/usr/local/cuda"
    programs = {name: shutil.which(name, path=search) or "" for name in ("ninja", "nvcc", "c++")}
    programs["nvcc"] = shutil.which(f"{toolkit}/bin/nvcc") or programs["nvcc"]
    return audit.Host(home, programs)


def main():
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "release": {"type": "str"},
            "flag_table": {"type": "list", "elements": "dict"},
            "patches": {"type": "list", "elements": "str"},
            "model_path": {"type": "path"},
            "capability": {"type": "int"},
            "gpus": {"type": "int"},
            "nodes": {"type": "int"},
            "links": {"type": "str", "choices": ["pcie", "nvlink"]},
            "concurrency": {"type": "int"},
            "planned": {"type": "str"},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        paths = audit.find(given["unit"])
        text, files = audit.read(paths, given["unit"])
    except OSError as error:
        module.fail_json(msg=f"{error}: name a unit of this node, or the path of its file")
    venv = audit.resolve(audit.parse(text, files)).venv
    there = Path(venv) if venv and Path(venv, "bin").is_dir() else None
    table = flag_table(given["flag_table"], there)
    service = audit.resolve(audit.parse(text, files, table))
    versions = audit.distributions(there) if there else None
    launch = Launch(
        release=given["release"] or (versions or {}).get("sglang", ""),
        table=table,
        flags=service.flags,
        environment=service.environment,
        capability=given["capability"],
        gpu_count=given["gpus"],
        nodes=given["nodes"],
        links=given["links"],
        patches=frozenset(given["patches"]) if given["patches"] is not None else there and audit.patches(there),
        concurrency=given["concurrency"],
        installed=versions,
    )
    model_path = given["model_path"] or launch.text("--model-path")
    shape, architecture, found = None, "", []
    if Path(model_path, "config.json").is_file():
        shape, architecture, found = read_model(model_path, launch.text("--quantization"))
    launch = replace(launch, shape=shape, architecture=architecture)
    found = audit.concealed(found, service.secrets)
    found += audit.judge(service, launch, host(service) if there else audit.Host())
    module.exit_json(
        changed=False,
        findings=as_dicts(found),
        files=[str(path) for path in (*paths, *(file.path for file in files if file.text is not None))],
        release=launch.release,
        difference=audit.difference(service, audit.resolve(audit.parse(given["planned"], (), table)))
        if given["planned"]
        else [],
        patches=None if launch.patches is None else sorted(launch.patches),
        model=architecture,
        interpreter=audit.conceal(service.interpreter, service.secrets),
        flags=audit.shown(service.flags, service.secrets),
        environment=audit.shown(service.environment, service.secrets),
        settings={
            name: [audit.conceal(value, service.secrets) for value in values]
            for name, values in service.settings.items()
            if values and name not in ("Environment", "SetCredential") and not name.startswith("Exec")
        },
    )


if __name__ == "__main__":
    main()
