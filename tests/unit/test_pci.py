# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The PCI bus: configuration spaces made here, by the layout of the PCI Express Base Specification."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import recorded
from ansible_collections.inference.sglang.plugins.module_utils import pci
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Bridge

ON = ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:A1:00.0", "0000:a1:00.0"),
        ("01:00.0", "0000:01:00.0"),
        ("PCI:0000:3b:00", "0000:3b:00.0"),
        ("00010000:e1:00.3", "10000:e1:00.3"),
        ("pci0000:00", ""),
        ("GPU-9449de41", ""),
    ],
)
def test_addresses_are_those_of_sys(text: str, address: str) -> None:
    assert pci.address(text) == address


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("0x2bb5", "blackwell"),  # RTX PRO 6000 Server Edition
        ("0x2901", "blackwell"),  # B200
        ("0x3182", "blackwell"),  # B300
        ("0x2335", "hopper"),  # H200
        ("0x26b9", "ada"),  # L40S
        ("0x20b2", "ampere"),  # A100 80 GB
        ("0x1eb8", "turing"),  # T4
        ("0x1db4", ""),
        ("", ""),
    ],
)
def test_the_architecture_is_told_without_a_driver(device: str, name: str) -> None:
    assert pci.architecture(device) == name


@pytest.mark.parametrize(
    ("speed", "generation"),
    [("32.0 GT/s PCIe", 5), ("2.5 GT/s PCIe", 1), ("8 GT/s", 3), ("Unknown", None), ("", None)],
)
def test_generation_of_a_link(speed: str, generation: int | None) -> None:
    assert pci.generation(speed) == generation


@pytest.mark.parametrize(
    ("config", "flags"),
    [
        (recorded.bridge_config(ON), ON),
        (recorded.bridge_config(()), ()),
        (recorded.bridge_config(("DirectTrans", "TransBlk")), ("TransBlk", "DirectTrans")),
        (recorded.bridge_config(ON)[:64], None),  # who is not root
        (b"", None),
        (b"\xff" * 4096, None),  # a device that fell off the bus
        (bytes(256), ()),  # without extended configuration space
        (bytes(4096), ()),
        (recorded.bridge_config(ON)[:0x2A4], ()),  # cut short
        (bytes(256) + struct.pack("<I", 0x100 << 20 | 1 << 16 | 1) + bytes(3836), ()),  # leads to itself
        # VFIO hides a capability by its number and keeps the next one's place.
        (bytes(256) + struct.pack("<I", 0x2A0 << 20) + recorded.bridge_config(ON)[0x104:], ON),
    ],
)
def test_access_control_services(config: bytes, flags: tuple[str, ...] | None) -> None:
    assert pci.acs(config) == flags


def test_bridges_are_those_above_the_card(tmp_path: Path) -> None:
    path = recorded.device(tmp_path, "pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:08.0/0000:43:00.0")
    for above, config in zip(path.parents, (recorded.bridge_config(ON), bytes(4096), bytes(64)), strict=False):
        (above / "config").write_bytes(config)
        (tmp_path / pci.DEVICES / above.name).symlink_to(f"../../../{above.relative_to(tmp_path / 'sys')}")
    assert pci.bridges("0000:43:00.0", tmp_path) == (
        Bridge(address="0000:42:08.0", acs=ON),
        Bridge(address="0000:41:00.0", acs=()),
        Bridge(address="0000:40:01.1", acs=None),
    )
    assert pci.bridges("0000:99:00.0", tmp_path) == ()


def test_group_and_kernel_driver(tmp_path: Path) -> None:
    folder = recorded.device(tmp_path, "pci0000:00/0000:00:01.1/0000:01:00.0")
    assert (pci.iommu_group("0000:01:00.0", tmp_path), pci.bound_to("0000:01:00.0", tmp_path)) == (("", ""), "")
    group = tmp_path / "sys/kernel/iommu_groups/17"
    group.mkdir(parents=True)
    (group / "type").write_text("DMA-FQ\n")
    (folder / "iommu_group").symlink_to("/sys/kernel/iommu_groups/17")
    (folder / "driver").symlink_to("/sys/bus/pci/drivers/nouveau")
    assert pci.iommu_group("0000:01:00.0", tmp_path) == ("17", "DMA-FQ")
    assert pci.bound_to("0000:01:00.0", tmp_path) == "nouveau"
    assert pci.bound_to("0000:99:00.0", tmp_path) == ""
