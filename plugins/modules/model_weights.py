#!/usr/bin/python
# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: model_weights
short_description: Fetch a model's weights onto a node
description:
  - Fetches the files of a model from a hub, a mirror, a folder of the node, or another node, into one folder. Goes on
    where an interrupted run ended, and checks length, SHA-256 and header of each file before it gets its name. A
    manifest, written last, says that the folder is complete.
  - Nothing is fetched before there is room for all that is missing. Nothing is removed or replaced that this module did
    not write. What is there already and right is taken over.
  - The files are fetched in the background on the node, and go on if the connection is lost. The action plugin of this
    name waits and says how far it is.
  - In check mode no network is used, and nothing but O(path) is looked at.
author:
  - The inference.sglang contributors (@inference-sglang)
extends_documentation_fragment:
  - inference.sglang.attributes
attributes:
  action:
    support: full
    description: Waits on the controller, and calls the module for each look.
options:
  path:
    description: Folder that the model is to be in.
    type: path
    required: true
  state:
    description:
      - V(present) has the files fetched.
      - V(looked) only looks, at the folder and at what is under way.
    type: str
    choices: [present, looked]
    default: present
  source:
    description: Where the files come from.
    type: str
    choices: [huggingface, url, folder]
    required: true
  repository:
    description: Name of the hub's repository, C(organisation/name).
    type: str
    default: ""
  revision:
    description: Commit of the repository, 40 hex digits. A branch or tag is refused, and its commit told.
    type: str
    default: ""
  include:
    description: Patterns of the files of a repository that are fetched.
    type: list
    elements: str
    default: ["*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py", "LICENSE*"]
  exclude:
    description: Patterns of those files that are not.
    type: list
    elements: str
    default: ["*/*.safetensors", "consolidated*.safetensors", "original/*", "onnx/*", "metal/*", ".*"]
  endpoint:
    description: Address of a mirror that speaks the hub's protocol. Without it, the one that C(huggingface_hub) knows.
    type: str
    default: ""
  url:
    description: Address of a folder that holds the files.
    type: str
    default: ""
  checksums:
    description: The files with their SHA-256, as C(sha256sum) prints them, or the address of such a list.
    type: str
    default: ""
  folder:
    description: Folder of the node that is copied.
    type: path
    default: ""
  token:
    description: Token that the hub or the mirror asks for. Sent to O(endpoint) or O(url), and to no other server.
    type: str
    default: ""
  seed:
    description:
      - C(url), C(token) and C(manifest) of a node that serves the same model, as M(inference.sglang.model_weights_seed)
        returns them. The files are then copied from there.
    type: dict
    suboptions:
      url:
        description: Where it listens.
        type: str
        required: true
      token:
        description: What it asks for.
        type: str
        required: true
      manifest:
        description: What it has.
        type: dict
        required: true
  python:
    description: Interpreter that has C(huggingface_hub).
    type: path
    default: ""
  list_script:
    description: Program that asks the hub what a repository holds.
    type: str
    default: ""
  environment:
    description: Variables such as C(HTTPS_PROXY), C(NO_PROXY) and C(SSL_CERT_FILE).
    type: dict
    default: {}
  connections:
    description: Files that are fetched at a time.
    type: int
    default: 8
  timeout:
    description: Seconds that fetching may take in all. Another run goes on where it ended.
    type: int
    default: 43200
seealso:
  - module: inference.sglang.model_weights_seed
"""

EXAMPLES = r"""
- name: Fetch the weights
  inference.sglang.model_weights:
    path: /var/lib/sglang/models/kimi-k2.6/0123456789abcdef0123456789abcdef01234567
    source: huggingface
    repository: moonshotai/Kimi-K2.6
    revision: 0123456789abcdef0123456789abcdef01234567
    python: /opt/sglang/releases/current/bin/python
    list_script: "{{ lookup('ansible.builtin.file', 'list_repository.py') }}"
"""

RETURN = r"""
complete:
  description: Whether all files are there and right.
  returned: success
  type: bool
path:
  description: The folder.
  returned: success
  type: str
running:
  description: Whether files are being fetched.
  returned: success
  type: bool
progress:
  description: How far that is, as one line.
  returned: success
  type: str
findings:
  description: What is wrong.
  returned: always
  type: list
  elements: dict
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.sglang.plugins.module_utils import credentials, transfers, weights, wheels
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_dicts, as_text

LIMIT = 60
"""Seconds that a hub may take to tell what a repository holds."""

REFUSALS = {
    "gated": "Accept the model's terms on the hub, and set model_weights_token to a token of that account",
    "revision": "Correct model_weights_revision",
    "repository": "Correct model_weights_repository, or set model_weights_token to one that may read it",
    "refused": "Check model_weights_endpoint and model_weights_token",
    "unreachable": "Check the network, model_weights_endpoint and the proxy (model_weights_environment)",
}


def ask_hub(module: AnsibleModule) -> dict:
    """What the hub says of the repository. Raises WeightsError."""
    given = module.params
    python = Path(given["python"])
    if not python.exists():
        seen = f"{python} is not there, and huggingface_hub is installed with the release"
        raise weights.WeightsError(Finding("weights.python", "error", seen, "Run role sglang first", weights.HERE))
    # Nothing of the account that this runs as: neither its token, nor its cache, nor its being offline.
    environment = {
        **{name: str(value) for name, value in given["environment"].items()},
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN_PATH": "/nonexistent",
        "HF_TOKEN": given["token"],
    }
    if given["endpoint"]:
        environment["HF_ENDPOINT"] = given["endpoint"]
    command = ["timeout", "--kill-after=5", str(LIMIT), str(python), "-I", "-"]
    _status, output, error = module.run_command(
        [*command, given["repository"], given["revision"]],
        data=given["list_script"],
        environ_update=environment,
        expand_user_and_vars=False,
    )
    try:
        report = wheels.report(output)
    except wheels.InstallError:
        last = (error.strip().splitlines() or [f"no answer within {LIMIT} s"])[-1]
        report = {"error": "unreachable", "text": last}
    if kind := report.get("error"):
        seen = f"{given['repository']}: {hide(module, str(report['text']))}"
        raise weights.WeightsError(Finding(f"weights.{kind}", "error", seen, REFUSALS[kind], "huggingface_hub.errors"))
    return report


def hide(module: AnsibleModule, text: str) -> str:
    """A text without the secrets that were given."""
    for secret in [module.params["token"], *credentials.secrets(module.params["environment"])]:
        text = text.replace(secret, "***") if secret else text
    return text


def find_files(module: AnsibleModule, what: dict) -> tuple[list, transfers.Source, str]:
    """The files that are wanted, how they are reached, and how their source is told. Raises WeightsError."""
    given = module.params
    if seed := given["seed"]:
        if seed["manifest"]["what"] != what:
            seen = "the node that was to be copied from holds another model, or another revision of it"
            remedy = "Run this for that node first, or name a host with this model in model_weights_seed"
            raise weights.WeightsError(Finding("weights.seed", "error", seen, remedy, weights.HERE))
        source = transfers.Source({"Authorization": f"Bearer {seed['token']}"}, direct=True)
        return weights.from_manifest(seed["manifest"], seed["url"]), source, seed["url"]
    source = transfers.Source({"Authorization": f"Bearer {given['token']}"} if given["token"] else {})
    if given["source"] == "huggingface":
        report = ask_hub(module)
        if given["revision"] != report["commit"]:
            raise weights.WeightsError(weights.unpinned(given["revision"], report["commit"]))
        wanted = weights.from_listing(report["files"], given["include"], given["exclude"])
        return wanted, source, given["repository"]
    if given["source"] == "url":
        listed = given["checksums"]
        text = source.text(listed) if listed.startswith(("http://", "https://")) else listed
        wanted = weights.from_checksums(text, given["url"])
        return transfers.sizes(wanted, source, given["connections"]), source, given["url"]
    folder = Path(given["folder"])
    if wrong := [finding for finding in weights.judge(weights.take(folder)) if finding.severity == "error"]:
        raise weights.WeightsError(*wrong)
    return weights.from_folder(folder), source, str(folder)


def begin(module: AnsibleModule, folder: transfers.Folder) -> None:
    """Have the files fetched by a process of its own, if no other is at it. Raises WeightsError."""
    given = module.params
    if folder.busy():
        return
    # A proxy and certificates are found in the environment, by this process and the one that it starts.
    os.environ.update({name: str(value) for name, value in given["environment"].items()})
    wanted, source, told = find_files(module, folder.what)
    entries = folder.entries()
    wrong = [
        *weights.announced(told, wanted),
        *weights.conflicts(folder.path, wanted, (name for name, entry in entries.items() if entry["ours"])),
        *weights.room(folder.missing(wanted), transfers.free_bytes(folder.path), str(folder.path)),
    ]
    if wrong:
        raise weights.WeightsError(*wrong)
    lock = folder.claim()
    if lock is None:
        return
    folder.tell({"running": True, "text": f"begins with {len(wanted)} files", "findings": []})
    transfer = transfers.Transfer(folder, wanted, source, given["connections"], given["timeout"])
    transfers.detach(lambda: transfers.fetch(transfer), "model_weights")
    os.close(lock)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "looked"], "default": "present"},
            "source": {"type": "str", "choices": ["huggingface", "url", "folder"], "required": True},
            "repository": {"type": "str", "default": ""},
            "revision": {"type": "str", "default": ""},
            "include": {"type": "list", "elements": "str", "default": list(weights.INCLUDED)},
            "exclude": {"type": "list", "elements": "str", "default": list(weights.EXCLUDED)},
            "endpoint": {"type": "str", "default": ""},
            "url": {"type": "str", "default": ""},
            "checksums": {"type": "str", "default": ""},
            "folder": {"type": "path", "default": ""},
            "token": {"type": "str", "default": "", "no_log": True},
            "seed": {
                "type": "dict",
                "options": {
                    "url": {"type": "str", "required": True},
                    "token": {"type": "str", "required": True, "no_log": True},
                    "manifest": {"type": "dict", "required": True},
                },
            },
            "python": {"type": "path", "default": ""},
            "list_script": {"type": "str", "default": ""},
            "environment": {"type": "dict", "default": {}, "no_log": True},
            "connections": {"type": "int", "default": 8},
            "timeout": {"type": "int", "default": 43200},
        },
        supports_check_mode=True,
    )
    given = module.params
    # As in module uv: no_log keeps the arguments out of logs, and would blank every "1" of the environment in results.
    tokens = {given["token"], (given["seed"] or {}).get("token", "")} - {""}
    module.no_log_values = credentials.secrets(given["environment"]) | tokens
    what = weights.identity(given)
    folder = transfers.Folder(Path(given["path"]), what)
    result = {"path": given["path"], "running": False, "progress": "", "findings": []}

    def refuse(*wrong: Finding) -> None:
        told = f"The weights in {given['path']} are not complete:\n{hide(module, as_text(wrong))}"
        module.fail_json(msg=told, **{**result, "findings": as_dicts(wrong)})

    if wrong := weights.another(folder.path, what):
        refuse(*wrong)
    if weights.complete(folder.path, what):
        module.exit_json(changed=False, complete=True, **result)
    if given["state"] == "looked":
        look(module, folder, result)
    if given["source"] == "huggingface" and module.check_mode and not weights.COMMIT.fullmatch(given["revision"]):
        refuse(weights.unpinned(given["revision"], ""))
    if not module.check_mode:
        os.umask(0o022)  # the service user is to read what root writes
        try:
            begin(module, folder)
        except weights.WeightsError as error:
            refuse(*error.findings)
        except OSError as error:
            module.fail_json(msg=str(error), **result)
        result["running"] = True
    module.exit_json(changed=True, complete=False, **result)


def look(module: AnsibleModule, folder: transfers.Folder, result: dict) -> None:
    """Say what is under way in an incomplete folder, or what it ended with."""
    running, told = folder.busy(), folder.told()
    result.update(running=running, progress=str(told.get("text", "")))
    # Between the two looks it may have come to its end.
    done = not running and weights.complete(folder.path, folder.what)
    if not running and not done:
        result["findings"] = told.get("findings") or []
        if told.get("running"):
            seen = f"fetching ended without a word, at {told['text']}"
            remedy = "See whether the node was started anew or had no memory left. " + transfers.ONCE_MORE
            result["findings"] = as_dicts([Finding("weights.ended", "error", seen, remedy, transfers.HERE)])
    module.exit_json(changed=False, complete=done, **result)


if __name__ == "__main__":
    main()
