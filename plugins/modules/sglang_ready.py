#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_ready
short_description: Wait until an instance answers, and show what it does meanwhile
description:
  - Waits until the instance is healthy, and completes one text with it. While it waits, a line on the screen says what
    the engine's last line in the journal was.
  - Fails as soon as the engine dies or systemd gives the unit up, when the time is over, or when the answer is no
    completion, and shows the journal.
  - In check mode it does nothing.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  url:
    description: Where the instance listens, seen from the node.
    type: str
    required: true
  model:
    description: The served name.
    type: str
    required: true
  prompt:
    description: The text that is completed.
    type: str
    required: true
  timeout:
    description: Seconds to wait at most.
    type: int
    default: 1800
  digest:
    description: Digest of the plan that the instance must run from. One that still runs from another is not ready.
    type: str
    required: true
  secrets:
    description:
      - File on the node that the plan takes its API key from. Not given where it has none.
      - The key is read on the node, and neither passed to this module nor returned.
    type: path
  poll:
    description: Seconds that one look at the node may take. A line can be shown after each.
    type: int
    default: 5
"""

EXAMPLES = r"""
- name: Wait until the instance answers
  inference.sglang.sglang_ready:
    name: tiny
    digest: "{{ plan.digest }}"
    url: http://127.0.0.1:30000
    model: tiny
    prompt: The quick brown fox
"""

RETURN = r"""
ready:
  description: Whether the instance is healthy.
  returned: success
  type: bool
text:
  description: What it completed.
  returned: when it is healthy
  type: str
tokens:
  description: How many tokens it completed.
  returned: when it is healthy
  type: int
waited:
  description: Seconds until it was healthy.
  returned: success
  type: float
over:
  description: Whether systemd gave it up.
  returned: outside check mode
  type: bool
died:
  description: Whether the engine has ended by itself, and systemd waits, to start it again or for its start to end.
  returned: outside check mode
  type: bool
restarts:
  description: How often systemd started it by itself since the last start on request.
  returned: outside check mode
  type: int
state:
  description: What systemd says of the unit, as one line.
  returned: outside check mode
  type: str
journal:
  description: Of its journal, the last line where it answers, else what tells why it does not.
  returned: outside check mode
  type: list
  elements: str
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import credentials, health


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "prompt": {"type": "str", "required": True},
            "timeout": {"type": "int", "default": 1800},
            "digest": {"type": "str", "required": True},
            "secrets": {"type": "path", "no_log": False},
            "poll": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, ready=False, waited=0.0, skipped=True)
    parameters = module.params
    secrets = parameters["secrets"] or ""
    began = time.monotonic()
    while True:
        unit = health.unit_state(parameters["name"])
        # An engine that is about to make room for its successor answers too.
        unit_file = health.unit_file(parameters["name"])
        current = health.runs_from_its_unit(unit, parameters["digest"], unit_file, secrets)
        ready = current and unit.active == "active" and health.healthy(parameters["url"])
        if ready or unit.over or unit.died or time.monotonic() - began > parameters["poll"]:
            break
        time.sleep(0.5)
    result = {
        "changed": False,
        "ready": ready,
        "over": unit.over,
        "died": unit.died,
        "restarts": unit.restarts,
        "state": f"{unit.active} ({unit.sub}), {unit.restarts} restarts, last result {unit.result}",
        "waited": round(time.monotonic() - began, 1),
        "journal": health.journal(parameters["name"], 1)
        if ready
        else health.telling(health.journal(parameters["name"], 400)),
    }
    if ready:
        try:
            key = credentials.read_key(secrets)
            answer = health.complete(parameters["url"], parameters["model"], parameters["prompt"], key=key)
        except (OSError, ValueError) as failure:
            module.fail_json(msg=f"The instance is healthy and does not complete a text: {failure}", **result)
        result |= {"text": answer["choices"][0]["text"], "tokens": answer["usage"]["completion_tokens"]}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
