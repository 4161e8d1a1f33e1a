#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: validate_settings
short_description: Judge a host's variables before its node is reached
description:
  - Checks every variable of the host that carries the prefix of a role of this collection, its type and choices,
    the release, and the SGLang flags against the flag table of that release.
  - Runs on the controller; no connection to the node is made.
  - Fails with all errors at once, one a line.
author: The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes.info
attributes:
  action:
    support: full
    description: Runs as an action plugin on the controller.
options:
  roles:
    description:
      - Roles whose variables are checked by value and returned; names are checked against all roles.
      - All roles of this collection if omitted.
    type: list
    elements: str
seealso:
  - module: inference.sglang.preflight
"""

EXAMPLES = r"""
- name: Check the settings before the node is reached
  inference.sglang.validate_settings:
  register: __preflight_settings

- name: Check only what the release needs
  inference.sglang.validate_settings:
    roles:
      - sglang
      - cuda_toolkit
"""

RETURN = r"""
settings:
  description:
    - The variables of the roles, the host's values over the roles' defaults, evaluated and converted to their types.
    - Variables that their role marks with C(no_log) are left out.
  returned: success
  type: dict
  sample:
    sglang_release: 0.5.12.post1
    sglang_server_port: 30000
locks:
  description: Digests of the locks that the settings lead to.
  returned: success
  type: dict
  contains:
    release:
      description: Of the release, by Python minor version.
      type: dict
      returned: success
      sample: {"3.11": 0a1b2c3d}
    toolkit:
      description: Of the CUDA toolkit; empty where its version has no lock.
      type: str
      returned: success
      sample: 4e5f6a7b
model_wanted:
  description: What is to be fetched as a model, as far as the settings tell, for M(inference.sglang.preflight).
  returned: success
  type: dict
  sample: {}
model_waived:
  description:
    - Ids of findings about the model's files that other settings make void, for M(inference.sglang.preflight).
  returned: success
  type: list
  elements: str
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
      sample: settings.unknown
    severity:
      description: C(error), C(warning) or C(info).
      type: str
      returned: always
      sample: error
    seen:
      description: What was read.
      type: str
      returned: always
      sample: sglang_sever_port carries the prefix of role sglang, but no role knows it
    remedy:
      description: What to do.
      type: str
      returned: always
      sample: Rename it to sglang_server_port, or remove it
    source:
      description: Where the judgement comes from; may be empty.
      type: str
      returned: always
      sample: roles/sglang/meta/argument_specs.yml
"""
