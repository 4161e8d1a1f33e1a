# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes on this machine: Debian containers with a real systemd, for the demo and for molecule."""

from __future__ import annotations

import os
from pathlib import Path

from project import ROOT, STATE, clean_environment, require_packages, run

# Names the folder of wheels and installations; another start or stop of this checkout remembers it.
STORE = "INFERENCE_SGLANG_STORE"
# netavark drives iptables on Debian 12 and nftables on Debian 13; it only recommends them.
PACKAGES = ("podman", "runc", "mmdebstrap", "iptables", "nftables", "netavark", "aardvark-dns", "openssh-client")


def store() -> Path:
    """The folder that all nodes of this machine share: wheels and installations (``node_store`` of the inventories)."""
    return Path(os.environ.get(STORE) or "/var/cache/inference.sglang")


def playbook(venv: Path, inventory: Path, name: str, *arguments: str) -> None:
    """Run a playbook of the checkout against an inventory."""
    ansible = venv / "bin" / "ansible-playbook"
    run([ansible, "--inventory", inventory, ROOT / name, *arguments], env=clean_environment(venv))


def create(venv: Path, inventory: Path) -> None:
    """Boot the inventory's hosts; those that run already stay."""
    require_packages(*PACKAGES)
    if store := os.environ.get(STORE):
        STATE.mkdir(exist_ok=True)
        (STATE / "store").write_text(store)
    playbook(venv, inventory, "molecule/nodes/create.yml")


def destroy(venv: Path, inventory: Path) -> None:
    """Remove the inventory's hosts, their network and what they installed. The wheel cache stays."""
    if (STATE / "store").exists():
        os.environ.setdefault(STORE, (STATE / "store").read_text())
    playbook(venv, inventory, "molecule/nodes/destroy.yml")
