# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nvidia-smi tells: each question is asked once, and its answers become what a plan needs and what a node is."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass

from ansible_collections.inference.sglang.plugins.module_utils import gpus, pci, probes
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.gpus import GpuError, NodeGpus
from ansible_collections.inference.sglang.plugins.module_utils.hardware import GpuState

Owner = Callable[[int], tuple[str, str]]
"""Unit and control group of a process."""

PROGRAM = "nvidia-smi"


class Smi:
    """nvidia-smi of one node, whose answers are kept. After it had to be ended once it is asked nothing new."""

    def __init__(self, ask: probes.Ask = probes.ask) -> None:
        self._ask = ask
        self._answers: dict[tuple[str, ...], tuple[str, str]] = {}

    def answer(self, *arguments: str) -> tuple[str, str]:
        """What it prints, and why it did not: see ``probes.Ask``."""
        if arguments not in self._answers:
            hung = next((why for _output, why in self._answers.values() if probes.HUNG in why), "")
            self._answers[arguments] = ("", hung) if hung else self._ask(PROGRAM, *arguments)
        return self._answers[arguments]

    def gpus(self) -> NodeGpus:
        """The GPUs without their links. Raises GpuError where they cannot be told, FileNotFoundError without
        nvidia-smi.
        """
        query, complaint = self.answer("-q", "-x")
        if complaint:
            raise GpuError(gpus.unreadable(complaint))
        found = gpus.parse(query)
        if all(gpus.known(gpu.product) for gpu in found.gpus):
            return found
        # The XML has no compute capability (driver 580).
        return gpus.parse(query, self.answer("--query-gpu=compute_cap", "--format=csv,noheader")[0])

    def links(self) -> dict[tuple[int, int], str]:
        """What connects each pair of GPUs. Raises GpuError."""
        return gpus.parse_links(self.answer("topo", "-m")[0])


def plan_gpus(smi: Smi, present: int, owner: Owner) -> tuple[NodeGpus | None, list[Finding]]:
    """What a plan takes of the node's GPUs, and what is wrong; None where there is nothing that tells.

    ``present``  number of NVIDIA GPUs on the PCI bus: without one, nvidia-smi may fail
    """
    try:
        found = smi.gpus()
    except FileNotFoundError:
        return None, []
    except GpuError as error:
        _query, complaint = smi.answer("-q", "-x")
        if not complaint:
            return None, list(error.findings)
        return None, [gpus.unreadable(f"the node has {present} NVIDIA GPU(s), {complaint}")] if present else []
    found = found.owned(owner)
    if len(found.gpus) < 2:
        return found, []
    try:
        return found.linked(smi.links()), []
    except GpuError as error:
        return found, list(error.findings)


@dataclass(frozen=True, kw_only=True)
class Told:
    """All that nvidia-smi tells of a node; fields as in ``Hardware`` and ``Driver``."""

    gpus: tuple[GpuState, ...] = ()
    links: dict[tuple[int, int], str]
    peers: dict[tuple[int, int], tuple[str, str]]
    driver: str = ""
    cuda: str = ""
    complaint: str = ""


def tell(smi: Smi, owner: Owner) -> Told:
    """Ask for everything. What is not answered is empty or None in the result."""
    nothing = Told(links={}, peers={})
    try:
        found = smi.gpus().owned(owner)
    except FileNotFoundError:
        return nothing
    except GpuError as error:
        complaint = smi.answer("-q", "-x")[1] or "; ".join(finding.seen for finding in error.findings)
        return Told(links={}, peers={}, complaint=complaint)
    tree = gpus.document(smi.answer("-q", "-x")[0])
    nvlinks = parse_nvlinks(smi.answer("nvlink", "--status")[0])
    several = len(found.gpus) > 1
    cuda = tree.findtext("cuda_version", "").strip()
    return Told(
        gpus=tuple(
            _state(gpu, element, nvlinks.get(gpu.index))
            for gpu, element in zip(found.gpus, tree.findall("gpu"), strict=True)
        ),
        links=_links(smi) if several else {},
        peers=_peers(smi) if several else {},
        driver=_version(found.driver),
        # Where there is no libcuda it is "Not Found".
        cuda=_version(cuda),
    )


def parse_nvlinks(status: str) -> dict[int, tuple[int, int]]:
    """Links that are up, and all, by index of the GPU: ``nvidia-smi nvlink --status``."""
    links: dict[int, tuple[int, int]] = {}
    index = None
    for line in status.splitlines():
        gpu = re.match(r"GPU (\d+):", line)
        link = re.match(r"\s+Link \d+: (.*)", line)
        if gpu:
            index = int(gpu[1])
            links[index] = (0, 0)
        elif link and index is not None:
            up, count = links[index]
            links[index] = (up + bool(re.match(r"[\d.]+ GB/s", link[1])), count + 1)
    return links


def parse_peers(reads: str, writes: str) -> dict[tuple[int, int], tuple[str, str]]:
    """Whether the two of each pair read and write one another's memory: ``nvidia-smi topo -p2p r`` and ``w``.

    Where it is not so both ways, the word of the way that is not.
    """
    first, second = _matrix(reads, "r"), _matrix(writes, "w")
    pairs = sorted({(min(pair), max(pair)) for pair in (*first, *second)})
    return {pair: (_worse(first, pair), _worse(second, pair)) for pair in pairs}


def _matrix(text: str, kind: str) -> dict[tuple[int, int], str]:
    try:
        return gpus.parse_matrix(text, f"nvidia-smi topo -p2p {kind}")
    except GpuError:
        return {}


def _worse(table: dict[tuple[int, int], str], pair: tuple[int, int]) -> str:
    words = [table.get(pair, ""), table.get(pair[::-1], "")]
    return next((word for word in words if word not in ("", "OK")), words[0])


def _links(smi: Smi) -> dict[tuple[int, int], str]:
    try:
        return smi.links()
    except GpuError:
        return {}


def _peers(smi: Smi) -> dict[tuple[int, int], tuple[str, str]]:
    return parse_peers(smi.answer("topo", "-p2p", "r")[0], smi.answer("topo", "-p2p", "w")[0])


def _state(gpu: gpus.Gpu, element: ET.Element, nvlinks: tuple[int, int] | None) -> GpuState:
    power, link = "gpu_power_readings", "pci/pci_gpu_link_info"
    architecture = _name(element, "product_architecture").lower().split(" ")[0]
    return GpuState(
        address=pci.address(element.get("id", "")),
        index=gpu.index,
        product=gpu.product,
        architecture=architecture,
        capability=gpu.card.capability or None,
        memory=gpu.memory or None,
        # Since driver 570 there is an average, too; before 530 the readings had another name.
        power_draw=_first(element, f"{power}/instant_power_draw", f"{power}/power_draw", "power_readings/power_draw"),
        power_limit=_first(
            element, f"{power}/current_power_limit", f"{power}/power_limit", "power_readings/power_limit"
        ),
        power_default=_first(element, f"{power}/default_power_limit", "power_readings/default_power_limit"),
        power_min=_first(element, f"{power}/min_power_limit", "power_readings/min_power_limit"),
        power_max=_first(element, f"{power}/max_power_limit", "power_readings/max_power_limit"),
        persistence=_switch(element, "persistence_mode"),
        ecc=_switch(element, "ecc_mode/current_ecc"),
        mig=_switch(element, "mig_mode/current_mig"),
        pcie_generation=_count(element, f"{link}/pcie_gen/current_link_gen"),
        pcie_generation_max=_count(element, f"{link}/pcie_gen/max_link_gen"),
        pcie_width=_count(element, f"{link}/link_widths/current_link_width"),
        pcie_width_max=_count(element, f"{link}/link_widths/max_link_width"),
        utilization=_count(element, "utilization/gpu_util"),
        nvlinks=nvlinks,
        fabric=(_name(element, "fabric/state"), _name(element, "fabric/status")),
        processes=gpu.processes,
    )


def _name(element: ET.Element, path: str) -> str:
    """A text; empty for ``N/A``, ``[N/A]``, ``[Unknown Error]``, ``ERR!``, ``[Not Supported]``, ``Not Supported``."""
    text = element.findtext(path, "").strip()
    nothing = ("N/A", "Unknown Error", "ERR!", "Not Supported", "Unknown", "GPU requires reset", "GPU is lost")
    return "" if text.strip("[]") in nothing else text


def _count(element: ET.Element, path: str) -> int | None:
    """The number of ``16x``, ``5``, ``100 %``."""
    found = re.fullmatch(r"(\d+)(?:x| %)?", _name(element, path))
    return int(found[1]) if found else None


def _first(element: ET.Element, *paths: str) -> float | None:
    """The watts of the first of these that tells some: ``600.00 W``."""
    found = (re.fullmatch(r"(\d+(?:\.\d+)?) W", _name(element, path)) for path in paths)
    return next((float(match[1]) for match in found if match), None)


def _switch(element: ET.Element, path: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(_name(element, path))


def _version(text: str) -> str:
    return text if re.fullmatch(r"\d+(\.\d+)+", text) else ""
