#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the action plugin of the same name plans from, read on the node; and the documentation of both."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_plan
short_description: Plan how a model is served on a node's GPUs
description:
  - From the settings, the release, the node's GPUs and the model's C(config.json), chooses layout, flags and
    environment of an instance, each with its reason, and says what to expect of them and what cannot work.
  - Runs on the controller. Only what it plans from is read on the node, by the module of this name, unless O(reach) is
    false; the node then needs no connection, and card and model are taken from the settings.
  - Changes nothing. Fails with all errors at once, one a line.
author: The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes.info
attributes:
  action:
    support: full
    description: Runs as an action plugin on the controller, which calls the module on the node.
options:
  settings:
    description:
      - The merged variables of the roles, as M(inference.sglang.validate_settings) returns them.
      - Must be given. Stays on the controller.
    type: dict
  reach:
    description:
      - Whether to read the node.
      - Stays on the controller.
    type: bool
    default: true
  model_path:
    description: Folder of the model on the node. Given by the action plugin, from O(settings).
    type: path
  instance:
    description:
      - Name of the instance, whose own processes may hold the GPUs, and which is not among the other instances.
      - Given by the action plugin, from O(settings).
    type: str
  gpus:
    description: Whether to ask C(nvidia-smi). Given by the action plugin, from O(settings).
    type: bool
    default: true
seealso:
  - module: inference.sglang.validate_settings
  - module: inference.sglang.unit_audit
"""

EXAMPLES = r"""
- name: Plan the instance from what its node has
  inference.sglang.serving_plan:
    settings: "{{ __preflight_settings.settings }}"
  register: __sglang_server_planned

- name: Plan it without its node
  inference.sglang.serving_plan:
    settings: "{{ __preflight_settings.settings }}"
    reach: false
  register: planned

- name: Show the plan
  ansible.builtin.debug:
    msg: "{{ planned.table }}"
"""

RETURN = r"""
plan:
  description: Command, arguments, environment and timeouts of the instance with their digest, and why they are so.
  returned: success
  type: dict
  contains:
    reasons:
      description: Why each flag and variable is as it is, by its name.
      type: dict
      returned: always
      sample: {"--pp-max-micro-batch-size": "64 requests spread over 9 slots, none packed into one"}
    layout:
      description: Ranks by kind, GPUs in all, and the layers of each stage where they are not SGLang's own.
      type: dict
      returned: always
    memory:
      description: Bytes of each stage, the fraction for weights and KV cache, and the tokens that it holds.
      type: dict
      returned: always
    expected:
      description: Tokens per second of one request and of all that are promised, and who estimated them.
      type: dict
      returned: always
    candidates:
      description: The layouts that were compared, best first, with what is expected of each or stands against it.
      type: list
      elements: dict
      returned: always
    warmup:
      description: The kernels that these flags build at first use.
      type: list
      elements: dict
      returned: always
    ahead:
      description: The names of those that can be built without a GPU.
      type: list
      elements: str
      returned: always
table:
  description: The plan as a text for people.
  returned: success
  type: str
facts:
  description: What the module read on the node. Empty where it was not reached.
  returned: success
  type: dict
  contains:
    gpus:
      description:
        - The C(driver) version, C(links) between pairs (C(0-1)) as C(nvidia-smi topo -m) names them, and C(gpus), each
          with C(index), C(product), C(card), C(memory) in bytes, C(mig) and C(processes).
        - Null without C(nvidia-smi), or where it tells nothing.
      type: dict
      returned: always
    model:
      description:
        - C(config), C(index) and C(quantization), the parsed files of O(model_path). Of the index only the size in all
          and one name a layer, which come from the weight files where there is no index.
        - Null where the folder is not there, or cannot be read.
      type: dict
      returned: always
    unit:
      description: C(name) of the instance's unit, and whether it is C(running) or on the way there.
      type: dict
      returned: always
      sample: {"name": "sglang-default.service", "running": true}
    instances:
      description:
        - Other instances of the node, C(name) and C(gpus).
        - C(gpus) are the numbers of C(CUDA_VISIBLE_DEVICES) in its plan, and null where it has all.
      type: list
      elements: dict
      returned: always
      sample: [{"name": "small", "gpus": [6, 7]}]
    host:
      description: Number of C(processors), and C(memory) in bytes.
      type: dict
      returned: always
      sample: {"processors": 64, "memory": 541165879296}
    chosen:
      description: The C(layout) of the instance's present plan, and the C(inputs) that it was chosen from; or null.
      type: dict
      returned: always
    findings:
      description: What could not be read, in the form of RV(findings).
      type: list
      elements: dict
      returned: always
      sample: []
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
      sample: gpus.held
    severity:
      description: C(error), C(warning) or C(info).
      type: str
      returned: always
      sample: error
    seen:
      description: What was read.
      type: str
      returned: always
      sample: >-
        83980 MiB are held by 1 process(es) of no service of systemd: 41000 (python3, 83980 MiB on GPU 0)
    remedy:
      description: What to do.
      type: str
      returned: always
      sample: "End them or what started them: kill 41000, or choose other GPUs in sglang_server_gpus"
    source:
      description: Where the judgement comes from; may be empty.
      type: str
      returned: always
      sample: sgl-project/sglang#16756
"""

import json
import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import (
    activations,
    health,
    kernel_builds,
    models,
    node,
    nvidia_smi,
    probes,
    readings,
    weights,
)
from ansible_collections.inference.sglang.plugins.module_utils.findings import as_dicts

ROOT = Path("/")


def read_gpus():
    """The node's GPUs where they can be told, and what is wrong with them."""
    present = len(list(node.gpus(ROOT)))
    found, findings = nvidia_smi.plan_gpus(nvidia_smi.Smi(), present, readings.owner_below(ROOT))
    return found and found.to_dict(), findings


def read_model(folder: str | None) -> tuple[dict | None, list]:
    """The files that tell a model's shape, and what is wrong with them."""
    if not folder or not Path(folder).is_dir() or weights.under_way(Path(folder)):
        return None, []
    try:
        config, index, quantization = models.files(Path(folder))
    except models.ModelError as error:
        return None, list(error.findings)
    return {"config": config, "index": index, "quantization": quantization}, []


def is_running(instance: str) -> bool:
    """Whether systemd runs the instance, starts it, or is about to."""
    try:
        state = health.unit_state(instance)
    except OSError:  # no systemd
        return False
    return bool(state.active) and not state.over


def other_instances(own: str | None) -> list[dict]:
    """The instances of the node whose plan can be read, but for one."""
    found = []
    for path in sorted(activations.FOLDER.glob(f"*/{activations.PLAN}")):
        name = path.parent.name
        # A plan is left behind where somebody took the unit away by hand.
        if name == own or not health.unit_file(name).is_file():
            continue
        try:
            listed = json.loads(path.read_bytes())["environment"].get("CUDA_VISIBLE_DEVICES")
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        # Empty hides every GPU; a name of another kind, such as a UUID, may stand for any.
        numbers = [part.strip() for part in listed.split(",") if part.strip()] if isinstance(listed, str) else [""]
        plain = all(number.isdecimal() for number in numbers)
        found.append({"name": name, "gpus": [int(number) for number in numbers] if plain else None})
    return found


def chosen_before(instance: str | None) -> dict | None:
    """Layout of the instance's plan, and what it was chosen from."""
    try:
        plan = json.loads((activations.FOLDER / str(instance) / activations.PLAN).read_bytes())
        return {"inputs": plan["inputs"], "layout": plan["layout"]}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def main():
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict"},
            "reach": {"type": "bool", "default": True},
            "model_path": {"type": "path"},
            "instance": {"type": "str"},
            "gpus": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    found, findings = read_gpus() if given["gpus"] else (None, [])
    model, wrong = read_model(given["model_path"])
    memory = kernel_builds.total_memory(probes.text(ROOT / "proc/meminfo"))
    facts = {
        "gpus": found,
        "model": model,
        "unit": {
            "name": health.unit_name(given["instance"]) if given["instance"] else "",
            "running": bool(given["instance"]) and is_running(given["instance"]),
        },
        "host": {"processors": os.cpu_count() or 1, "memory": memory},
        "chosen": chosen_before(given["instance"]),
        "instances": other_instances(given["instance"]),
        "findings": as_dicts([*findings, *wrong]),
    }
    module.exit_json(changed=False, facts=facts)


if __name__ == "__main__":
    main()
