# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From nothing to an answering SGLang: ``script/demo``; ``script/demo stop`` removes the node again."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nodes
from project import ROOT, STATE, clean_environment, environment, run

INVENTORY = ROOT / "inventories" / "local"
PROMPT = "The quick brown fox"

INTRODUCTION = f"""\
This boots a Debian node (a container with a real systemd) on this machine and installs SGLang in it, as on a GPU node:
  - Debian packages here, if missing: {" ".join(nodes.PACKAGES)}
  - a Python environment with ansible-core in {STATE.relative_to(ROOT)}/
  - in the node: CUDA 13.0, SGLang 0.5.12.post1, FlashInfer, a tiny model, the service sglang-tiny
About 10 GB of wheels are fetched once and kept in /var/cache/inference.sglang, or where INFERENCE_SGLANG_STORE says.
"""


def start() -> None:
    """Everything, from the packages to the answer."""
    began = time.monotonic()
    print(INTRODUCTION, flush=True)
    venv = environment("controller")
    nodes.create(venv, INVENTORY)
    nodes.playbook(venv, INVENTORY, "site.yml")
    facts = STATE / "verified-facts.txt"
    os.environ["VERIFIED_FACTS"] = str(facts)
    nodes.playbook(venv, INVENTORY, "playbooks/verify.yml")
    print(f"\nVerified facts\n{facts.read_text()}")
    for host, variables in hosts(venv).items():
        plan = json.loads(ssh(host, variables, "cat /etc/sglang/tiny/plan.json"))
        port = int(plan["url"].rpartition(":")[2])
        with tunnel(variables, port) as local:
            text = complete(f"http://127.0.0.1:{local}", plan["served_name"])
        words = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", *ssh_arguments(variables)]
        print(f"Endpoint    {plan['url']} on node {host}; from here:\n            {' '.join(words)}")
        print(f"            curl {plan['url']}/v1/models")
        print(f"Completion  {PROMPT!r} -> {text!a}")
        print("            (random weights: a real answer, not a sensible one)")
        print(f"Journal     ssh {' '.join(ssh_arguments(variables))} journalctl --unit sglang-{plan['name']} --follow")
    print(f"Ansible     PATH={venv / 'bin'}:$PATH")
    print(f"Time        {time.monotonic() - began:.0f} s from start to answer")
    print("Stop        script/demo stop", flush=True)


def hosts(venv: Path) -> dict[str, dict[str, str]]:
    """Host -> its variables, as Ansible sees them."""
    argv = [f"{venv}/bin/ansible-inventory", "--inventory", str(INVENTORY), "--list"]
    listed = subprocess.run(argv, check=True, capture_output=True, text=True, env=clean_environment(venv), cwd=ROOT)
    variables: dict[str, dict[str, str]] = json.loads(listed.stdout)["_meta"]["hostvars"]
    return variables


def ssh_arguments(variables: dict[str, str]) -> list[str]:
    """How to reach the node of script/demo by hand."""
    state = STATE / "nodes" / "demo"
    known = f"UserKnownHostsFile={state}/known_hosts"
    return ["-i", f"{state}/id_ed25519", "-o", known, f"root@{variables['ansible_host']}"]


def ssh(host: str, variables: dict[str, str], command: str) -> str:
    """Output of a command on the node; SystemExit when it fails."""
    return run(["ssh", "-q", *ssh_arguments(variables), command], capture=True)


@contextlib.contextmanager
def tunnel(variables: dict[str, str], port: int) -> Iterator[int]:
    """A port of this machine's loopback that leads to the node's, for as long as the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        local: int = free.getsockname()[1]
    forward = ["-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{local}:127.0.0.1:{port}"]
    process = subprocess.Popen(["ssh", "-q", *forward, *ssh_arguments(variables)])
    try:
        for _attempt in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", local), timeout=1):
                break
            time.sleep(0.1)
        yield local
    finally:
        process.terminate()
        process.wait()


def complete(url: str, model: str) -> str:
    """The text that the engine behind ``url`` adds to the prompt."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(  # noqa: S310 # our own loopback URL
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=60) as response:
        text: str = json.load(response)["choices"][0]["text"]
    return text


def main(arguments: list[str]) -> None:
    """Start without an argument, ``stop`` to remove everything but the wheel cache."""
    try:
        match arguments:
            case []:
                start()
            case ["stop"]:
                nodes.destroy(environment("controller"), INVENTORY)
                print("The node is gone. The wheels stay, for the next start: /var/cache/inference.sglang, or where")
                print(f"{nodes.STORE} said.", flush=True)
            case _:
                raise SystemExit("usage: script/demo [stop]")
    except KeyboardInterrupt:
        print("\nInterrupted. script/demo goes on from here; script/demo stop removes the node.", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main(sys.argv[1:])
