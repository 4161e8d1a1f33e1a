#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: model_weights_seed
short_description: Serve the weights of a node to another one for a while
description:
  - Starts a server on the node that hands out the files of one complete model to whoever has O(token). It ends when it
    is told to, when nobody has asked for anything for a while, or when its time is over.
  - It runs as O(user), and knows no paths but numbers of the manifest's files. What it sends is not encrypted; the
    other node judges it by the manifest, which goes through Ansible's own connection.
  - In check mode it does nothing.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
attributes:
  idempotent:
    support: none
options:
  path:
    description: Folder of the model. It must have been fetched completely by M(inference.sglang.model_weights).
    type: path
    required: true
  state:
    description:
      - V(serving) starts a server.
      - V(ended) tells the one at O(url) to end, which may have ended by itself.
    type: str
    choices: [serving, ended]
    default: serving
  address:
    description: Address or name of the node that the other one reaches it by. The server listens there only.
    type: str
    default: ""
  port:
    description: TCP port. V(0) takes any that is free.
    type: int
    default: 0
  user:
    description: User that the server runs as, who can read the model.
    type: str
    default: ""
  timeout:
    description: Seconds that the server lives at most.
    type: int
    default: 43200
  idle:
    description: Seconds after which a server that nobody asks ends.
    type: int
    default: 300
  url:
    description: The server that is to end.
    type: str
    default: ""
  token:
    description: What the server asks for, 32 characters or more. Another one for each server.
    type: str
    required: true
seealso:
  - module: inference.sglang.model_weights
"""

EXAMPLES = r"""
- name: Serve the weights of the first node
  inference.sglang.model_weights_seed:
    path: "{{ model_weights_path }}"
    address: 192.0.2.11
    user: sglang
    token: "{{ token }}"
  delegate_to: gpu1
  register: served
"""

RETURN = r"""
url:
  description: Where the server listens.
  returned: when it was started
  type: str
manifest:
  description: The model's manifest.
  returned: when it was started
  type: dict
"""

import os
import pwd
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import transfers, weights


def become(user: str) -> None:
    """Give up root for good."""
    account = pwd.getpwnam(user)
    os.setgroups(os.getgrouplist(user, account.pw_gid))
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def serve(module: AnsibleModule) -> dict:
    """Start a server, and say how to reach it. Raises WeightsError, OSError, KeyError."""
    given = module.params
    folder = Path(given["path"])
    manifest = weights.manifest(folder)
    names = sorted(manifest["files"]) if manifest else []
    if not names or len(weights.untouched(folder, manifest["files"])) < len(names):
        module.fail_json(
            msg=f"{folder} on {os.uname().nodename}, the node to copy the model from, is not complete: run this for "
            "that node first, without --limit or with one that it is in, or set model_weights_seed to '' to fetch the "
            "model on each node"
        )
    address = transfers.listening_address(given["address"])
    server = transfers.Server((address, given["port"]), [folder / name for name in names], given["token"])
    if given["user"] and os.geteuid() == 0:
        pwd.getpwnam(given["user"])  # here, where it can still be told

    def work() -> None:
        if given["user"] and os.geteuid() == 0:
            become(given["user"])
        server.live(given["timeout"], given["idle"])

    host = f"[{address}]" if ":" in address else address
    url = f"http://{host}:{server.port}"
    transfers.detach(work, "weights_seed")
    server.socket.close()
    return {"url": url, "manifest": manifest}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["serving", "ended"], "default": "serving"},
            "address": {"type": "str", "default": ""},
            "port": {"type": "int", "default": 0},
            "user": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 43200},
            "idle": {"type": "int", "default": 300},
            "url": {"type": "str", "default": ""},
            "token": {"type": "str", "required": True, "no_log": True},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, skipped=True)
    if len(module.params["token"]) < 32:
        module.fail_json(msg="The token is too short: give 32 random characters or more")
    if module.params["state"] == "ended":
        module.exit_json(changed=transfers.end_server(module.params["url"], module.params["token"]))
    try:
        module.exit_json(changed=True, **serve(module))
    except weights.WeightsError as error:
        module.fail_json(msg=str(error))
    except (OSError, KeyError) as error:
        module.fail_json(msg=f"The model cannot be served from this node: {error}")


if __name__ == "__main__":
    main()
