# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Recorded nodes of data/hardware: their files in a folder, and what their tools answered."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def load(name: str) -> dict[str, Any]:
    """A recording: ``folders``, ``files`` and ``links`` by path, ``answers`` by command; ``@`` is a file of data."""
    recording: dict[str, Any] = json.loads((DATA / "hardware" / f"{name}.json").read_text())
    return recording


def plant(recording: dict[str, Any], root: Path) -> Path:
    """Make a node's files below ``root``."""
    for folder in recording["folders"]:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in recording["files"].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, target in recording["links"].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    return root


def ask(answers: dict[str, str], root: Path, asked: list[str] | None = None) -> Callable[..., tuple[str, str]]:
    """Answers as a node's tools would; an answer that begins with ``!`` is a complaint."""

    def answer(program: str, *arguments: str) -> tuple[str, str]:
        command = " ".join([program, *arguments]).replace(str(root), "")
        if asked is not None:
            asked.append(command)
        if not any(known.split(" ")[0] == command.split(" ")[0] for known in answers):
            raise FileNotFoundError(program)
        text = answers.get(command, "!unknown option")
        if text.startswith("!"):
            return "", text[1:]
        return (DATA / text[1:]).read_text() if text.startswith("@") else text, ""

    return answer


ACS_FLAGS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")


def bridge_config(flags: tuple[str, ...]) -> bytes:
    """Configuration space of a bridge with error reporting and, behind that, access control services."""
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x2A0 << 20 | 2 << 16 | 0x0001)
    control = sum(1 << ACS_FLAGS.index(flag) for flag in flags)
    struct.pack_into("<IHH", config, 0x2A0, 1 << 16 | 0x000D, 0x7F, control)
    return bytes(config)


def device(root: Path, path: str, **files: str) -> Path:
    """A PCI device: its folder in /sys/devices, with these files, and its link in /sys/bus."""
    folder = root / "sys/devices" / path
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.removeprefix("_")).write_text(f"{text}\n")
    link = root / "sys/bus/pci/devices" / folder.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../devices/{path}")
    return folder
