# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The PCI bus of a node, as ``/sys`` tells of it: addresses, links, IOMMU groups, ACS of the bridges above a device."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from ansible_collections.inference.sglang.plugins.module_utils import probes
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Bridge

DEVICES = "sys/bus/pci/devices"

ARCHITECTURES = (
    (0x1E00, 0x1FFF, "turing"),
    (0x2080, 0x20FF, "ampere"),
    (0x2180, 0x21FF, "turing"),
    (0x2200, 0x22FF, "ampere"),
    (0x2300, 0x23FF, "hopper"),
    (0x2400, 0x25FF, "ampere"),
    (0x2680, 0x28FF, "ada"),
    (0x2900, 0x29FF, "blackwell"),
    (0x2B80, 0x2DFF, "blackwell"),
    (0x2F00, 0x2F7F, "blackwell"),
    (0x3180, 0x31FF, "blackwell"),
)
"""First and last PCI device id: NVIDIA/gpu-admin-tools, gpu/devid_chips.py; the last (B300, GB300): pci-ids.ucw.cz."""

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)
_GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}

# PCI Express Base Specification: extended capabilities, and the one for access control services.
_EXTENDED = 0x100
_ACS = 0x000D
_CONFIG = 4096
_FLAGS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")


def address(text: str) -> str:
    """``0000:01:00.0`` for ``00000000:01:00.0``, ``01:00.0`` or the driver's ``PCI:0000:01:00``; empty for others."""
    found = _ADDRESS.fullmatch(text.strip().removeprefix("PCI:"))
    if not found:
        return ""
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}".lower()


def architecture(device: str) -> str:
    """That of an NVIDIA card by its device id (``0x2bb5``); empty for one that is not known."""
    try:
        code = int(device, 16)
    except ValueError:
        return ""
    return next((name for first, last, name in ARCHITECTURES if first <= code <= last), "")


def generation(speed: str) -> int | None:
    """PCIe's, of a link's speed in ``/sys`` (``32.0 GT/s PCIe``)."""
    return _GENERATIONS.get(speed.partition(" ")[0])


def acs(config: bytes) -> tuple[str, ...] | None:
    """The ACS flags that are on, from a device's configuration space: see ``Bridge``.

    Whoever is not root is given its first 64 bytes.
    """
    if len(config) <= 64:
        return None
    offset, seen = _EXTENDED, set()
    while _EXTENDED <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header == 0xFFFFFFFF:  # no device answers
            return None
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, offset + 6)
            return tuple(name for bit, name in enumerate(_FLAGS) if control >> bit & 1)
        offset = header >> 20
    return ()


def bridges(device: str, root: Path) -> tuple[Bridge, ...]:
    """Those above a device, nearest first: the folders that its own one lies in."""
    above = probes.resolve(f"/{DEVICES}/{device}", root).split("/")[:-1]
    return tuple(
        Bridge(address=name, acs=acs(probes.data(root / DEVICES / name / "config", _CONFIG)))
        for name in reversed(above)
        if address(name)
    )


def iommu_group(device: str, root: Path) -> tuple[str, str]:
    """Number of a device's IOMMU group and the type of its domain; both empty without one."""
    folder = probes.resolve(f"/{DEVICES}/{device}/iommu_group", root)
    number = folder.rpartition("/")[2]
    return (number, probes.word(probes.below(root, folder) / "type")) if number.isdecimal() else ("", "")


def bound_to(device: str, root: Path) -> str:
    """Name of the kernel driver that has a device; empty for none."""
    folder = probes.resolve(f"/{DEVICES}/{device}/driver", root)
    return "" if address(folder.split("/")[-2]) else folder.rpartition("/")[2]
