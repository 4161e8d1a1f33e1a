# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a GPU node is made of and how it is set: driver, cards, links, PCI bridges, kernel, limits.

A number that is not known is None, a name that is not known empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ansible_collections.inference.sglang.plugins.module_utils.gpus import Process
from ansible_collections.inference.sglang.plugins.module_utils.node import Space

Flavour = Literal["open", "proprietary", ""]
Iommu = Literal["off", "passthrough", "translated", ""]

UNLIMITED = 2**64 - 1
"""A limit that is none, as systemd writes ``infinity`` in its properties."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The NVIDIA driver of a node.

    ``version``      of the loaded kernel module (``580.95.05``); empty where none is loaded
    ``flavour``      of the loaded kernel module
    ``library``      version of the user library that is installed (``libcuda.so.<version>``)
    ``cuda``         newest CUDA version that the driver supports (``13.0``)
    ``complaint``    what nvidia-smi said or did instead of an answer; empty where it answered, or is not there
    ``persistenced`` whether nvidia-persistenced runs
    ``packages``     installed Debian packages of driver, its libraries and CUDA, with versions
    ``held``         those of them that dpkg holds
    ``kernels``      installed kernels, by whether each has an NVIDIA module (``/lib/modules``) …
    ``headers``      … and whether each has its headers
    ``secure_boot``  whether Secure Boot is on; None where the node has no EFI, or does not tell
    ``key_enrolled`` whether the key that signs DKMS modules is enrolled; None where nothing tells
    """

    version: str = ""
    flavour: Flavour = ""
    library: str = ""
    cuda: str = ""
    complaint: str = ""
    persistenced: bool | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    kernels: Mapping[str, bool] = field(default_factory=dict)
    headers: Mapping[str, bool] = field(default_factory=dict)
    secure_boot: bool | None = None
    key_enrolled: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """A PCI bridge above a GPU. ``acs``: the flags that are on in its ACS control register, by lspci's names
    (``SrcValid``, ``ReqRedir``, ``CmpltRedir``, ``UpstreamFwd``); empty where it has no such capability, None where
    it may not be read, which is for root.
    """

    address: str
    acs: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """One NVIDIA GPU as the PCI bus and nvidia-smi describe it now.

    ``address``       PCI address (``0000:01:00.0``), ``device`` PCI device id (``0x2bb5``); both without a driver, too
    ``index``         nvidia-smi's; None where it does not know this device
    ``architecture``  ``blackwell``, ``hopper``, ``ada``, ``ampere``, …; by nvidia-smi, else by device id
    ``capability``    compute capability times ten
    ``memory``        bytes
    ``power_*``       W: drawn now, the limit in force, the default one, the least and the largest that may be set
    ``pcie_*``        generation and width (lanes): now, and at most that card and slot allow
    ``utilization``   percent
    ``nvlinks``       links that are up, and all of the card
    ``fabric``        state and status of ``nvidia-smi`` on HGX (``Completed``, ``Success``); empty elsewhere
    ``numa``          NUMA node; None where the kernel does not tell
    ``iommu_group``   number of the group, and ``iommu_type`` of its domain (``DMA``, ``DMA-FQ``, ``identity``)
    ``bound_to``      kernel driver that has the device (``nvidia``, ``nouveau``, ``vfio-pci``); empty for none
    ``bridges``       those above the card, nearest first
    """

    address: str
    device: str = ""
    index: int | None = None
    product: str = ""
    architecture: str = ""
    capability: int | None = None
    memory: int | None = None
    power_draw: float | None = None
    power_limit: float | None = None
    power_default: float | None = None
    power_min: float | None = None
    power_max: float | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    mig: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    utilization: int | None = None
    nvlinks: tuple[int, int] | None = None
    fabric: tuple[str, str] = ("", "")
    numa: int | None = None
    iommu_group: str = ""
    iommu_type: str = ""
    bound_to: str = ""
    bridges: tuple[Bridge, ...] = ()
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Xid:
    """What the driver reported of a GPU since boot: PCI ``address`` as in GpuState, error ``code``, how often, and the
    last message.
    """

    address: str
    code: int
    times: int
    message: str


@dataclass(frozen=True, kw_only=True)
class CudaTree:
    """A CUDA toolkit that a build might find.

    ``path``     as it is found (``/usr/local/cuda``), ``target`` what that resolves to (``/usr/local/cuda-13.0``)
    ``found``    as what: ``folder`` (a usual place), ``PATH`` (its nvcc is the first that this process finds),
                 ``profile`` (``PATH`` in /etc/environment or /etc/profile.d), ``CUDA_HOME`` (there, too),
                 ``ld.so.conf``
    ``nvcc``     version of nvcc, and ``headers`` of its headers (``13.0``); each empty where the tree has none
    """

    path: str
    target: str
    found: tuple[str, ...] = ()
    nvcc: str = ""
    headers: str = ""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The running kernel: ``release`` (``6.8.0-90-generic``), ``command_line``, and how its IOMMU treats devices:
    ``off``, ``passthrough``, ``translated``; empty where nothing tells. ``container``: systemd's name of the kind of
    container that the node is; empty for a machine.
    """

    release: str = ""
    command_line: str = ""
    iommu: Iommu = ""
    container: str = ""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of the node's memory and of what processes share.

    ``shm_*``          of ``/dev/shm``
    ``memlock``        the limit that systemd gives to services that set none; ``UNLIMITED`` for none
    ``hugepages``      policy of transparent huge pages (``always``, ``madvise``, ``never``)
    ``huge_reserved``  bytes set aside for huge pages of all sizes
    """

    total: int | None = None
    available: int | None = None
    shm_size: int | None = None
    shm_free: int | None = None
    memlock: int | None = None
    hugepages: str = ""
    huge_reserved: int | None = None


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One reading of a node.

    ``gpus``    in the order of their PCI addresses, all that are on the bus
    ``links``   pairs of indices, the smaller first, to the word of ``nvidia-smi topo -m`` (``PIX``, ``NV18``)
    ``peers``   such pairs to the words of ``topo -p2p r`` and ``topo -p2p w`` (``OK``, ``CNS``, ``NS``), either empty
                where it was not told
    ``xids``    None where the kernel's log cannot be read
    ``spaces``  by asked path
    """

    driver: Driver = Driver()
    gpus: tuple[GpuState, ...] = ()
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    peers: Mapping[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    kernel: Kernel = Kernel()
    memory: Memory = Memory()
    xids: tuple[Xid, ...] | None = None
    cuda_trees: tuple[CudaTree, ...] = ()
    spaces: Mapping[str, Space] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; a pair is ``0-1``."""
        values = asdict(self)
        for name in ("links", "peers"):
            values[name] = {f"{first}-{second}": words for (first, second), words in values[name].items()}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Hardware:
        """What ``to_dict`` gave, also after JSON. What is left out has its default."""
        given = dict(values)
        return cls(
            driver=_driver(given.get("driver", {})),
            gpus=tuple(_gpu_state(gpu) for gpu in given.get("gpus", ())),
            links={_pair(pair): word for pair, word in given.get("links", {}).items()},
            peers={_pair(pair): (words[0], words[1]) for pair, words in given.get("peers", {}).items()},
            kernel=Kernel(**given.get("kernel", {})),
            memory=Memory(**given.get("memory", {})),
            xids=None if given.get("xids") is None else tuple(Xid(**xid) for xid in given["xids"]),
            cuda_trees=tuple(
                CudaTree(**{**tree, "found": tuple(tree.get("found", ()))}) for tree in given.get("cuda_trees", ())
            ),
            spaces={path: Space(**space) for path, space in given.get("spaces", {}).items()},
        )


def _driver(values: Mapping[str, Any]) -> Driver:
    return Driver(**{**values, "held": tuple(values.get("held", ()))})


def _gpu_state(values: Mapping[str, Any]) -> GpuState:
    nvlinks = values.get("nvlinks")
    bridges = (
        Bridge(address=bridge["address"], acs=None if bridge.get("acs") is None else tuple(bridge["acs"]))
        for bridge in values.get("bridges", ())
    )
    made = {
        "nvlinks": None if nvlinks is None else tuple(nvlinks),
        "fabric": tuple(values.get("fabric", ("", ""))),
        "bridges": tuple(bridges),
        "processes": tuple(Process(**process) for process in values.get("processes", ())),
    }
    return GpuState(**{**values, **made})


def _pair(text: str) -> tuple[int, int]:
    first, second = text.split("-")
    return int(first), int(second)
