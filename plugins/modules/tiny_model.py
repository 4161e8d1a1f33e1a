#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: tiny_model
short_description: Make a tiny Llama of random weights
description:
  - Writes a model folder of 1 MB in Hugging Face's layout, with four layers and a tokenizer of one token a byte, so
    that a node without a registry can load, serve and answer for real. The model says nothing sensible.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
options:
  path:
    description: The model's folder.
    type: path
    required: true
  seed:
    description: Seed of the weights.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Make a model to try the chain with
  inference.sglang.tiny_model:
    path: /var/lib/sglang/models/tiny-llama/1
"""

RETURN = r"""
path:
  description: The model's folder.
  returned: success
  type: str
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import tiny_llama


def main():
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "seed": {"type": "int", "default": 0}},
        supports_check_mode=True,
    )
    folder, seed = Path(module.params["path"]), module.params["seed"]
    changed = not tiny_llama.is_complete(folder, seed)
    if changed and not module.check_mode:
        os.umask(0o022)  # the service user is to read what root writes
        try:
            tiny_llama.write(folder, seed)
        except OSError as failure:
            module.fail_json(msg=str(failure))
    module.exit_json(changed=changed, path=str(folder))


if __name__ == "__main__":
    main()
