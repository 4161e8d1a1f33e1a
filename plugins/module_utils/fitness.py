# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fitness: whether a node's driver, GPUs, links, kernel and memory are fit to serve; one small function a rule.

An error is what keeps the engine from starting or lets it hang, a warning what costs speed or may end it later. What
is not known is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, Severity
from ansible_collections.inference.sglang.plugins.module_utils.hardware import (
    CudaTree,
    Driver,
    GpuState,
    Hardware,
    Xid,
)

GIB = 1 << 30
MIB = 1 << 20

HANG = "local-inference-lab/rtx6kpro#15"
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
MODULES = "https://developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules/"
COMPATIBLE = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
XIDS = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
PERSISTENCE = "https://docs.nvidia.com/deploy/driver-persistence/index.html"

LEAST_DRIVER: Mapping[int, int] = {13: 580, 12: 525}
"""Oldest driver branch by major version of CUDA: ``COMPATIBLE``."""

LEAST_NVCC: Mapping[int, str] = {120: "12.9", 121: "12.9", 103: "12.9", 100: "12.8", 90: "12.3"}
"""Oldest nvcc that FlashInfer compiles with for a compute capability times ten: flashinfer-ai/flashinfer#3633 for
SM120 (12.8 from FlashInfer 0.7.2 on) and flashinfer-ai/flashinfer#684 for SM90; the first toolkit that knows the
architecture for the others (https://docs.nvidia.com/cuda/cuda-features-archive/)."""

SHM = GIB
"""Bytes of /dev/shm for each GPU. A margin of this collection's: the documentation's example for a container of any
size is 1 GiB (``NCCL``)."""

SEGMENT = 9637888
"""Bytes of one of NCCL's segments in /dev/shm: sgl-project/sgl-project.github.io#5. A rank has several."""

UNSET_SHM = 64 * MIB
"""Bytes of /dev/shm in a container for which nobody asked for more: docker-run(1), ``--shm-size``."""

LEAST_MEMLOCK = 8 * MIB
"""Bytes that systemd lets services lock where nothing is set: systemd-system.conf(5), DefaultLimitMEMLOCK."""

ENROL = "mokutil --import /var/lib/dkms/mok.pub (on Ubuntu /var/lib/shim-signed/mok/MOK.der)"
"""For the key that ``readings.key_enrolled`` looks for."""

APART = re.compile(r"(lib)?nvidia-container|cuda-keyring$|datacenter-gpu-manager|nsight-|nvidia-driver-pinning")
"""Packages of NVIDIA's that an engine uses nothing of: for containers, sources of packages, watching and profiling."""

SHOWN = 4
"""Names of a long list that a finding tells; the report has all of them."""

BUSY = 95
"""Percent at which a GPU without a process hangs in a kernel rather than answering a query."""

UNDER_LOAD = 50
"""Percent from which on a GPU is awake: an idle one lowers the generation of its link to save power, and one that has
just been given work may not have raised it yet."""


@dataclass(frozen=True, kw_only=True)
class Denied:
    """Builds of the driver that fail on some GPUs, from ``first`` to ``last``, both included.

    ``products``  pattern for what nvidia-smi calls the GPU
    """

    first: str
    last: str
    products: str
    what: str
    remedy: str
    source: str
    severity: Severity = "warning"


# Only what a thread settles. Firmware that halts under load (Xid 8, 62, 119, 120) is reported of RTX PRO 6000 for
# branches 580 and 595 alike (NVIDIA/open-gpu-kernel-modules#1111, #1159), and no build is known to be free of it.
DENIED = (
    # The builds of the two reports; the thread names none that mends it.
    Denied(
        first="570.133.20",
        last="580.105.08",
        products=r"B200",
        what="nvidia-smi hangs about 66 days after the boot, as reported for 570.133.20 and 580.105.08",
        remedy="Reboot the node at least every 60 days, which starts the count anew",
        source="NVIDIA/open-gpu-kernel-modules#971",
    ),
    # The thread quotes NVIDIA, who has it as bug 6426268 and has named no build that mends it.
    Denied(
        first="595.84",
        last="595.84",
        products=r"RTX PRO 6000 Blackwell.*",
        what="the GPU's firmware is reported to panic under sustained matrix products (Xid 120)",
        remedy="Put the GPUs under full load before they serve, and search journalctl -k -b -g Xid; where it tells of "
        "Xid 120, try another build",
        source="NVIDIA/open-gpu-kernel-modules#1151",
    ),
)

PEERS: Mapping[str, str] = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPUs do not support it",
    "TNS": "the topology does not support it",
    "NS": "it is not supported between them",
    "U": "the driver does not know",
}
"""What ``nvidia-smi topo -p2p`` says where it does not say OK: its legend."""

_APPLICATION = "A program's own error ends that program alone. Search the engine's log for it"
_RESTART = "Restart the engine, if it ended; if it comes back, have the card checked"
_RESET = (
    "Stop what uses the GPU and reset it with nvidia-smi --gpu-reset, else reboot; if it comes back, have the card "
    "checked"
)
_REBOOT = "Reboot the node; if it comes back, check power, seat and temperature of the card, and the driver's build"
_FIRMWARE = (
    "Stop what uses the GPU and reset it with nvidia-smi --gpu-reset, else reboot; if it comes back, try another build "
    "of the driver"
)
_FABRIC = "Look its numbers up in the catalogue: some count for nothing, most ask for a reset of the GPU"


@dataclass(frozen=True)
class Code:
    """An Xid: what it means, what to do, and whether the GPU is of use before that is done."""

    meaning: str
    remedy: str
    severity: Severity = "warning"


CODES: Mapping[int, Code] = {
    8: Code("the GPU stopped processing", _RESTART),
    13: Code("an exception of the graphics engine, mostly an illegal address in a kernel", _APPLICATION, "info"),
    31: Code("a page fault of the GPU's memory, mostly an illegal address in a kernel", _APPLICATION, "info"),
    43: Code("a channel was reset after a program's error", _APPLICATION, "info"),
    45: Code("channels were cleaned up after another error or a killed program", _APPLICATION, "info"),
    46: Code("the GPU stopped processing", _RESET),
    48: Code("an uncorrectable error of the memory", _RESET),
    62: Code("a micro-controller of the GPU halted", _FIRMWARE),
    63: Code("a row of the memory was remapped", "Nothing has to be done, unless it comes again and again", "info"),
    64: Code("a row of the memory could not be remapped", _RESET),
    74: Code("an error of NVLink", "Reset the GPUs or reboot; if it comes back, have bridge or baseboard checked"),
    79: Code("the GPU fell off the bus", _REBOOT),
    94: Code("an uncorrectable error of the memory that ended one program", _RESTART, "info"),
    95: Code("an uncorrectable error of the memory that may have spread", _RESET),
    109: Code("a context switch timed out", _RESET),
    119: Code("the GPU's firmware does not answer", _FIRMWARE),
    120: Code("the GPU's firmware failed", _FIRMWARE),
    140: Code("an uncorrectable error of the memory was not recovered", _RESET),
    143: Code("the GPU could not be initialised", _RESET),
    145: Code("an error of NVLink", _FABRIC),
    149: Code("an error of NVLink", _FABRIC),
    154: Code("another error asks for this", "Do what it says in brackets"),
    158: Code("the GPU timed out", _RESET),
}
"""The codes that matter to an engine, with the immediate action for B100: ``XIDS``."""

ASKS = 154
"""The Xid that says what another one asks for, and later that nothing is asked for any more: ``XIDS``."""

RECOVERED = re.compile(r"GPU recovery action changed from .* to \S+ \(None\)")
"""Message of an ``ASKS`` that takes back what an earlier one asked for: ``XIDS``."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """What the node is to do.

    ``cuda``          version of CUDA that the release is built for (``13.0``)
    ``toolkit``       CUDA_HOME that its kernels are compiled with; empty where the role brings it
    ``p2p_fallback``  whether the instance does without direct access between GPUs
    ``gpus``          nvidia-smi's numbers of those that the instance may use; all of them where it is empty
    """

    cuda: str
    toolkit: str = ""
    p2p_fallback: bool = False
    gpus: tuple[int, ...] = ()


Rule = Callable[[Hardware, Use], Iterator[Finding]]


def judge(
    hardware: Hardware, *, cuda: str, toolkit: str = "", p2p_fallback: bool = False, gpus: Sequence[int] = ()
) -> list[Finding]:
    """Every rule's findings about a node with at least one GPU; none for a node without. Arguments: ``Use``.

    What the other GPUs are set to and who uses them is no concern of an instance's: the rules of ``CARDS`` are given
    its own. That a GPU, or its driver, is missing altogether is judged by the room ``rules``.
    """
    if not hardware.gpus:
        return []
    use = Use(cuda=cuda, toolkit=toolkit, p2p_fallback=p2p_fallback, gpus=tuple(gpus))
    given = _given(hardware)
    own = _own(given, use.gpus)
    return [
        finding
        for rule in RULES
        for finding in rule(hardware if rule is withheld else own if rule in CARDS else given, use)
    ]


def nvlinked(hardware: Hardware) -> bool:
    """Whether every pair has NVLink: by the topology, else by the cards' links."""
    if hardware.links:
        return all(word.startswith("NV") for word in hardware.links.values())
    return all(gpu.nvlinks and gpu.nvlinks[0] for gpu in hardware.gpus)


# Driver.


def proprietary(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """From Blackwell on, only the open flavour of the module works. Source: ``MODULES``,
    Start9Labs/start-technologies#3465.
    """
    if _wrong_flavour(hardware):
        yield Finding(
            "driver.proprietary",
            "error",
            f"Blackwell needs the open kernel module; loaded: proprietary {hardware.driver.version}",
            f"{_host(hardware)}"
            "Install the open flavour of the same branch, such as nvidia-driver-580-server-open or nvidia-open, remove "
            "the other, and reboot; role nvidia_driver does it with nvidia_driver_manage: true",
            "Start9Labs/start-technologies#3465",
        )


def mismatch(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """A library that was replaced under a loaded module. Source: pando85/homelab#4110."""
    module, library = hardware.driver.version, _library(hardware.driver)
    if _differ(module, library):
        yield Finding(
            "driver.mismatch",
            "error",
            f"The loaded module is {module}, the driver's library {library}: reboot required",
            f"{_host(hardware)}Reboot the node, which loads the module of the installed version"
            + ("; or take the driver's library out of the container's image" if hardware.kernel.container else ""),
            "pando85/homelab#4110",
        )


def unreadable(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """nvidia-smi, which answers with an error, hangs or prints something else. Source: what it printed."""
    driver = hardware.driver
    if not driver.version or not driver.complaint or _explained(hardware):
        return
    yield Finding(
        "driver.complaint",
        "error",
        f"nvidia-smi does not tell of the GPUs: {driver.complaint}",
        f"{_host(hardware)}"
        "Search the kernel's log: journalctl -k -b -g NVRM; reboot, and where that does not help install the driver "
        "again",
        "nvidia-smi",
    )


def unlisted(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Cards on the bus that the driver could not start. Source: ``/sys/bus/pci/devices`` against nvidia-smi."""
    lost = [gpu for gpu in hardware.gpus if gpu.index is None and gpu.bound_to in ("", "nvidia")]
    if not lost or not hardware.driver.version or hardware.driver.complaint or _explained(hardware):
        return
    yield Finding(
        "cards.unlisted",
        "error",
        f"{len(lost)} of {len(hardware.gpus)} GPUs on the PCI bus are not known to nvidia-smi: {_named(lost)}",
        f"{_host(hardware)}"
        "Search the kernel's log: journalctl -k -b -g NVRM; power-cycle the node, then check seat and power of the "
        "card, and whether the driver's build knows it",
        "/sys/bus/pci/devices",
    )


def withheld(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Cards of the machine that a container was not given: ``/sys`` shows them all the same. They are somebody else's,
    and not judged. Source: ``/sys/bus/pci/devices`` against nvidia-smi.
    """
    others = _others(hardware)
    if others:
        container = hardware.kernel.container
        yield Finding(
            "cards.withheld",
            "info",
            f"{len(others)} of {len(hardware.gpus)} GPUs of the machine are not given to this {container} container, "
            "or not known to its driver",
            f"Start the {container} container with all GPUs, if they are to serve here",
            "/sys/bus/pci/devices",
        )


def bound(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Cards that another driver of the kernel has: nouveau, or vfio-pci for a virtual machine. Source: ``/sys``."""
    taken: dict[str, list[GpuState]] = {}
    for gpu in hardware.gpus:
        if gpu.bound_to not in ("", "nvidia"):
            taken.setdefault(gpu.bound_to, []).append(gpu)
    for driver, cards in taken.items():
        given = driver.startswith("vfio")
        yield Finding(
            "cards.bound",
            "warning" if given and len(cards) < len(hardware.gpus) else "error",
            f"The kernel's driver {driver} has {_named(cards)}, not NVIDIA's",
            _host(hardware)
            + (
                "Take them from the virtual machine's configuration and reboot, if they are to serve here"
                if given
                else f"Keep it out: write 'blacklist {driver}' to /etc/modprobe.d, run update-initramfs -u and reboot"
            ),
            "/sys/bus/pci/devices",
        )


def old_driver(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """A driver runs what is built for its own major version of CUDA. Source: ``COMPATIBLE``."""
    version = hardware.driver.version
    major = _version(use.cuda)[0]
    least = LEAST_DRIVER.get(major)
    if not version or least is None or _version(version)[0] >= least:
        return
    yield Finding(
        "driver.old",
        "error",
        f"The driver is {version}; CUDA {use.cuda}, which the release is built for, needs {least} or newer",
        f"{_host(hardware)}Install a driver of branch {least} or newer with its open kernel module, and reboot",
        COMPATIBLE,
    )


def denied(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Builds that are known to fail. Source: the table ``DENIED``."""
    build = _version(hardware.driver.version)
    for entry in DENIED:
        hit = [gpu for gpu in hardware.gpus if re.fullmatch(entry.products, gpu.product.removeprefix("NVIDIA "))]
        if hit and build and _version(entry.first) <= build <= _version(entry.last):
            seen = f"Driver {hardware.driver.version} on {hit[0].product}: {entry.what}"
            yield Finding("driver.denied", entry.severity, seen, entry.remedy, entry.source)


def unheld(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Packages that unattended-upgrades may replace under the running engine. Source: pando85/homelab#4110."""
    free = sorted(name for name in set(hardware.driver.packages) - set(hardware.driver.held) if not APART.match(name))
    if not free:
        return
    some = len(free) > SHOWN
    shown = ", ".join(free[:SHOWN]) + (f" and {len(free) - SHOWN} more" if some else "")
    hold = f"apt-mark hold {' '.join(free[:SHOWN])}" + (", and so on" if some else "")
    yield Finding(
        "driver.unheld",
        "warning",
        f"Packages of driver and CUDA may be upgraded at any time ({len(free)}): {shown}",
        f"Hold them: {hold}; role nvidia_driver holds the driver's with nvidia_driver_manage: true",
        "pando85/homelab#4110",
    )


def secure_boot(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Modules that DKMS signed with a key that is not enrolled are rejected. A module that is loaded is accepted; those
    of ``linux-modules-nvidia-*`` are signed by the distribution. Source: linux-surface/linux-surface#906.
    """
    driver = hardware.driver
    signed = any(name.startswith("linux-modules-nvidia") for name in driver.packages)
    if driver.secure_boot and driver.key_enrolled is False and not driver.version and not signed:
        yield Finding(
            "driver.secure_boot",
            "error",
            "Secure Boot on, DKMS key not enrolled: the kernel will reject the NVIDIA module",
            f"Enrol it: {ENROL}, reboot, and confirm at the console; or use signed modules, such as "
            "linux-modules-nvidia-580-server-open-generic",
            "linux-surface/linux-surface#906",
        )


def next_kernel(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """The running kernel, and the newest, which the next boot takes: each needs a module, or headers to build one.

    Source: linux-surface/linux-surface#906.
    """
    driver, running = hardware.driver, hardware.kernel.release
    if hardware.kernel.container:
        return
    newest = max(driver.kernels, key=_version, default=running)
    for kernel in dict.fromkeys((running, newest)):
        if not kernel or driver.kernels.get(kernel) is not False:
            continue
        when = "the driver cannot be built" if kernel == running else "the next reboot would lose the driver"
        if driver.headers.get(kernel) is False:
            yield Finding(
                "kernel.headers",
                "warning",
                f"Kernel {kernel} has no NVIDIA module and no headers: {when}",
                f"Install its headers: apt-get install linux-headers-{kernel}",
                "linux-surface/linux-surface#906",
            )
        elif any(driver.kernels.values()):
            yield Finding(
                "kernel.module",
                "warning",
                f"Kernel {kernel} has no NVIDIA module, and another has one: the next reboot would lose the driver",
                f"Build it: dkms autoinstall -k {kernel}, and read what stands in its way",
                "linux-surface/linux-surface#906",
            )


def persistence(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Without it the driver puts a GPU down with its last program, and takes seconds to bring it back. The daemon alone
    does not say that it is on: Ubuntu's unit starts it with ``--no-persistence-mode``. Source: ``PERSISTENCE``.
    """
    off = [gpu for gpu in hardware.gpus if gpu.persistence is False]
    if not off:
        return
    daemon = {True: ", although nvidia-persistenced runs", False: ", and nvidia-persistenced does not run", None: ""}
    yield Finding(
        "driver.persistence",
        "warning",
        f"Persistence mode is off on {_named(off)}{daemon[hardware.driver.persistenced]}",
        f"{_host(hardware)}Start nvidia-persistenced with --persistence-mode in a drop-in of its unit, as role "
        "node_settings does, or until the next boot run nvidia-smi -pm 1",
        PERSISTENCE,
    )


# Cards.


def mixed(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Ranks get equal shares, so the smallest and slowest sets the pace. Source: room ``gpus``."""
    kinds: dict[str, list[GpuState]] = {}
    for gpu in hardware.gpus:
        if gpu.product:
            kinds.setdefault(gpu.product, []).append(gpu)
    if len(kinds) > 1:
        seen = "; ".join(f"{_named(cards)}: {product}" for product, cards in kinds.items())
        remedy = "Give each instance GPUs of one kind in sglang_server_gpus"
        yield Finding("cards.mixed", "warning", seen, remedy, "plugins/module_utils/gpus.py")


def mig(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """SGLang is given whole GPUs, and instances have no direct access to each other. Source: NVIDIA's MIG guide."""
    divided = [gpu for gpu in hardware.gpus if gpu.mig]
    if divided:
        numbers = ",".join(str(gpu.index) for gpu in divided)
        yield Finding(
            "cards.mig",
            "warning",
            f"MIG is enabled on {_named(divided)}",
            f"Run nvidia-smi -i {numbers} -mig 0 while nothing uses them, or leave them out of sglang_server_gpus",
            "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
        )


def ecc(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """ECC in line takes memory and bandwidth, so that cards with and without it are no longer alike. Source:
    nvidia-smi.
    """
    on = [gpu for gpu in hardware.gpus if gpu.ecc is True]
    off = [gpu for gpu in hardware.gpus if gpu.ecc is False]
    if any(first.product == second.product for first in on for second in off):
        numbers = ",".join(str(gpu.index) for gpu in off)
        yield Finding(
            "cards.ecc",
            "warning",
            f"ECC is on on {_named(on)} and off on {_named(off)}: they differ in memory and speed",
            f"Set it alike: nvidia-smi -i {numbers} -e 1, and reboot",
            "nvidia-smi",
        )


def power(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """A limit below the card's own may be wanted; unequal ones make ranks wait for each other. Source: nvidia-smi."""
    low = [
        gpu
        for gpu in hardware.gpus
        if gpu.power_limit is not None and gpu.power_default is not None and gpu.power_limit < gpu.power_default
    ]
    if not low:
        return
    limits = {(gpu.product, gpu.power_limit) for gpu in hardware.gpus if gpu.power_limit is not None}
    unequal = len(limits) > len({product for product, _limit in limits})
    shown = "; ".join(f"{_named([gpu])}: {gpu.power_limit:g} of {gpu.power_default:g} W" for gpu in low)
    yield Finding(
        "cards.power",
        "warning" if unequal else "info",
        f"The power limit is below the default of the card, {'on some only, ' if unequal else ''}{shown}",
        f"Set it with nvidia-smi -pl {low[0].power_default:g}, unless power or cooling asks for less",
        "nvidia-smi",
    )


def busy(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """What a collective that hung leaves behind; the processes of other containers are not seen from within one.

    Source: ``HANG``.
    """
    stuck = [gpu for gpu in hardware.gpus if (gpu.utilization or 0) >= BUSY and not gpu.processes]
    if not stuck:
        return
    container = hardware.kernel.container
    numbers = ",".join(str(gpu.index) for gpu in stuck)
    yield Finding(
        "cards.busy",
        "warning" if container else "error",
        f"{_named(stuck)}: {max(gpu.utilization or 0 for gpu in stuck)} % busy, and no process is seen"
        + (f" from this {container} container" if container else ""),
        f"Reset what hangs: nvidia-smi --gpu-reset -i {numbers}, else reboot",
        HANG,
    )


def held(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Memory that an instance would miss; the plan refuses the GPUs that an instance is to have. Source:
    sgl-project/sglang#16756.
    """
    strangers = {
        process.pid: process
        for gpu in hardware.gpus
        for process in gpu.processes
        if not re.fullmatch(r"sglang-.+\.service", process.unit)
    }
    if not strangers:
        return
    on = [gpu for gpu in hardware.gpus if any(process.pid in strangers for process in gpu.processes)]
    total = sum(process.memory for gpu in on for process in gpu.processes if process.pid in strangers)
    shown = ", ".join(f"{process.pid} ({process.name})" for process in strangers.values())
    yield Finding(
        "cards.held",
        "warning",
        f"{total // MIB} MiB on {_named(on)} are held by processes of no SGLang instance: {shown}",
        f"End them or the service that they belong to, if they are not wanted: kill {' '.join(map(str, strangers))}",
        "sgl-project/sglang#16756",
    )


# Links.


def iommu(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Translated, it sends what GPUs say to each other through the root complex, and collectives hang. Source:
    ``HANG``, ``NCCL``; NVIDIA/nccl#631 for iommu=pt.
    """
    types = [gpu.iommu_type for gpu in hardware.gpus if gpu.iommu_type]
    translated = any(kind.startswith("DMA") for kind in types) if types else hardware.kernel.iommu == "translated"
    if not translated or not _direct(hardware):
        return
    line = hardware.kernel.command_line
    missing = "" if "iommu=pt" in line.split() else ", and iommu=pt is missing from the kernel's command line"
    yield _fallback(
        use,
        Finding(
            "pcie.iommu",
            "error",
            f"The IOMMU translates addresses between {len(hardware.gpus)} GPUs on PCIe{missing}: NCCL may hang in the "
            "first all-reduce",
            f"{_host(hardware)}Add iommu=pt to the kernel's command line and reboot (preflight_fix_boot: true lets "
            "role node_settings write it), or switch the IOMMU off in the BIOS",
            HANG,
        ),
    )


def acs(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Ports that redirect requests between GPUs to the root complex. Source: ``HANG``, ``NCCL``, NVIDIA/nccl#2079."""
    ports = {
        bridge.address: bridge.acs
        for gpu in hardware.gpus
        for bridge in gpu.bridges
        if bridge.acs and {"ReqRedir", "CmpltRedir"} & set(bridge.acs)
    }
    if not ports or not _direct(hardware):
        return
    shown = ", ".join(f"{port} ({' '.join(flags)})" for port, flags in ports.items())
    commands = "; ".join(f"setpci -s {port} ECAP_ACS+6.w=0000" for port in ports)
    yield _fallback(
        use,
        Finding(
            "pcie.acs",
            "error",
            f"Access Control Services redirect what GPUs say to each other, at {shown}: NCCL may hang in the first "
            "all-reduce",
            f"{_host(hardware)}Switch ACS off in the BIOS, or until the next boot as root: {commands}",
            HANG,
        ),
    )


def peers(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Pairs that the driver gives no direct access; NCCL then goes through the node's memory. Source: the legend of
    ``nvidia-smi topo -p2p``, ``nvmlGpuP2PStatus_t``.
    """
    refused: dict[str, list[str]] = {}
    for (first, second), words in sorted(hardware.peers.items()):
        word = next((word for word in words if word and word != "OK"), "")
        if word:
            refused.setdefault(word, []).append(f"{first}-{second}")
    for word, pairs in refused.items():
        meaning = PEERS.get(word, "nvidia-smi does not explain it")
        between = "all pairs" if len(pairs) == len(hardware.peers) > 1 else ", ".join(pairs)
        yield Finding(
            "pcie.peers",
            "info" if use.p2p_fallback else "warning",
            f"GPUs cannot read and write each other's memory: {word} ({meaning}) for {between}",
            "Run nvidia-smi topo -p2p r; check the BIOS (above 4G decoding, resizable BAR), the driver's build and, on "
            "HGX, nvidia-fabricmanager",
            "https://docs.nvidia.com/deploy/nvml-api/",
        )


def width(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Fewer lanes than card and slot have: a bad seat or riser, or lanes that are shared. Source: nvidia-smi(1), which
    says that an idle card may take lanes back, too.
    """
    narrow = [gpu for gpu in hardware.gpus if gpu.pcie_width and gpu.pcie_width < (gpu.pcie_width_max or 0)]
    if narrow:
        shown = "; ".join(f"{_named([gpu])}: {gpu.pcie_width} of {gpu.pcie_width_max} lanes" for gpu in narrow)
        remedy = "Look again under load; check seat, riser and the slot's lanes in the board's manual and BIOS"
        yield Finding("pcie.width", "warning", shown, remedy, "nvidia-smi -q")


def generation(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """Judged under load only: an idle link is slow to save power. Source: nvidia-smi(1), ``pcie.link.gen.current``."""
    slow = [
        gpu
        for gpu in hardware.gpus
        if gpu.pcie_generation
        and gpu.pcie_generation < (gpu.pcie_generation_max or 0)
        and (gpu.utilization or 0) >= UNDER_LOAD
    ]
    if slow:
        shown = "; ".join(f"{_named([gpu])}: {gpu.pcie_generation} of {gpu.pcie_generation_max}" for gpu in slow)
        yield Finding(
            "pcie.generation",
            "warning",
            f"The link is of a lower PCIe generation than it could be, under load: {shown}",
            "Check riser and retimer, and the slot's generation in the BIOS",
            "nvidia-smi -q",
        )


def nvlinks(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """A card whose links are all down and that nothing says should have them is one without a bridge. Source:
    NVIDIA/NVSentinel#1481, NVIDIA/nccl#596.
    """
    wired = any(any(_fabric(gpu)) or (gpu.nvlinks and gpu.nvlinks[0]) for gpu in hardware.gpus)
    down = [gpu for gpu in hardware.gpus if gpu.nvlinks and gpu.nvlinks[0] < gpu.nvlinks[1]]
    if wired and down:
        shown = "; ".join(f"{_named([gpu])}: {gpu.nvlinks[0]} of {gpu.nvlinks[1]}" for gpu in down if gpu.nvlinks)
        yield Finding(
            "nvlink.down",
            "warning",
            f"NVLinks that are up: {shown}",
            "Run nvidia-smi nvlink -s; reboot, and have bridge or baseboard checked where they stay down",
            "NVIDIA/NVSentinel#1481",
        )


def fabric(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """On HGX no program can start before the fabric manager has joined the GPUs. Source: NVIDIA/NVSentinel#883 for the
    states, aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop#33 for CUDA's error, NVIDIA/nccl#1488 for the reset.
    """
    waiting: dict[str, list[GpuState]] = {}
    for gpu in hardware.gpus:
        state, status = _fabric(gpu)
        if (state and state != "Completed") or (status and status != "Success"):
            waiting.setdefault(f"{state or 'no state'}, {status or 'no status'}", []).append(gpu)
    for state, cards in waiting.items():
        yield Finding(
            "fabric.state",
            "error",
            f"The NVLink fabric is not ready ({state}) on {_named(cards)}: CUDA would fail with error 802",
            f"{_host(hardware)}"
            "Run systemctl status nvidia-fabricmanager, install it in the driver's very version if it is missing, and "
            "start it; where it had run before, reset all GPUs (nvidia-smi --gpu-reset) or reboot as well",
            "NVIDIA/NVSentinel#883",
        )


def numa(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """GPUs of two sockets reach each other across the sockets' link. Source: ``nvidia-smi topo -m``."""
    places: dict[int, list[GpuState]] = {}
    for gpu in hardware.gpus:
        if gpu.numa is not None and gpu.numa >= 0:
            places.setdefault(gpu.numa, []).append(gpu)
    if len(places) > 1 and not nvlinked(hardware):
        shown = "; ".join(f"{_named(cards)}: node {place}" for place, cards in sorted(places.items()))
        remedy = "Keep tensor parallelism inside one NUMA node where the model fits, and pipeline stages across them"
        seen = f"The GPUs are on several NUMA nodes: {shown}"
        yield Finding("numa.split", "info", seen, remedy, "nvidia-smi topo -m")


# What the kernel says and gives.


def xids(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """What the driver reported since the boot. A GPU that is still of use was reset or recovered, which the log does
    not tell: an error is only what a GPU that nvidia-smi does not know ended with. Source: ``XIDS``.
    """
    lost = {gpu.address for gpu in hardware.gpus if gpu.index is None} if hardware.driver.version else set()
    alike: dict[tuple[int, Severity], list[Xid]] = {}
    for xid in hardware.xids or ():
        code = CODES.get(xid.code)
        if code is None:
            continue
        severity = code.severity
        if xid.code == ASKS and RECOVERED.search(xid.message):
            severity = "info"
        elif severity == "warning" and xid.address in lost:
            severity = "error"
        alike.setdefault((xid.code, severity), []).append(xid)
    for (number, severity), reported in alike.items():
        asked = f": {reported[-1].message}" if number == ASKS and reported[-1].message else ""
        times = sum(xid.times for xid in reported)
        yield Finding(
            "xid.reported",
            severity,
            f"Xid {number} on {', '.join(xid.address for xid in reported)}, {times} times since the boot: "
            f"{CODES[number].meaning}{asked.rstrip('.')}",
            CODES[number].remedy,
            XIDS,
        )


def shared_memory(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """NCCL's segments lie in /dev/shm, of which a container has 64 MiB by default, and leftovers fill it elsewhere.
    With the driver's own shared memory NCCL does without, which containers mostly do not allow.

    Source: ``NCCL``, sgl-project/sgl-project.github.io#5.
    """
    memory, count, container = hardware.memory, len(hardware.gpus), hardware.kernel.container
    size, free = memory.shm_size, memory.shm_free
    known = [bytes_ for bytes_ in (size, free) if bytes_ is not None]
    if not known or count < 2 or min(known) >= SHM * count:
        return
    small = bool(container) and size is not None and size <= UNSET_SHM
    told = [f"{name} {value // MIB} MiB" for name, value in (("size", size), ("free", free)) if value is not None]
    remedy = "Remove what no process has open there (nccl-* of users that run nothing), or enlarge it: mount -o "
    remedy += f"remount,size={count * SHM // GIB}G /dev/shm"
    if container:
        remedy = f"Start the container with --shm-size={count * SHM // GIB}g or --ipc=host"
    yield Finding(
        "memory.shm",
        "error" if small or min(known) < SEGMENT * count else "warning",
        f"Shared memory (/dev/shm): {', '.join(told)}; {count} GPUs need {count * SHM // MIB} MiB",
        remedy,
        "sgl-project/sgl-project.github.io#5",
    )


def memlock(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """The instance's unit asks for no limit, which a container may not be allowed to give. Source: systemd.exec(5),
    LimitMEMLOCK, and ``NCCL`` (InfiniBand).
    """
    limit, container = hardware.memory.memlock, hardware.kernel.container
    if container and limit is not None and limit < LEAST_MEMLOCK:
        yield Finding(
            "memory.memlock",
            "warning",
            f"Services of this {container} container may lock {limit // 1024} KiB of memory",
            "Start the container with --ulimit memlock=-1",
            NCCL,
        )


# CUDA toolkits.


def toolkit(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """What the release's kernels are compiled with. Source: flashinfer-ai/flashinfer#3675 and #3493."""
    used = _used(hardware, use)
    if used is None:
        return
    path = used.path if used.path == used.target else f"{used.path}, which is {used.target}"
    if used.nvcc and used.headers and used.nvcc != used.headers:
        yield Finding(
            "cuda.headers",
            "error",
            f"CUDA_HOME is {path}, with nvcc {used.nvcc} and headers of {used.headers}: nothing compiles",
            f"Set cuda_toolkit_home to a complete toolkit of {use.cuda}, or leave it out: the role then brings one",
            "flashinfer-ai/flashinfer#3493",
        )
    if not used.nvcc or used.nvcc == use.cuda:
        return
    architectures = {gpu.capability for gpu in hardware.gpus if gpu.capability in LEAST_NVCC}
    needy = [sm for sm in LEAST_NVCC if sm in architectures and _version(used.nvcc) < _version(LEAST_NVCC[sm])]
    why = f"; kernels for SM{needy[0]} need >= {LEAST_NVCC[needy[0]]}" if needy else ""
    wrong = _version(used.nvcc) < _version(use.cuda) or _version(used.nvcc)[0] != _version(use.cuda)[0]
    yield Finding(
        "cuda.toolkit",
        "error" if wrong else "warning",
        f"CUDA_HOME is {path}: nvcc {used.nvcc}, and torch is built for {use.cuda}{why}",
        f"Set cuda_toolkit_home to a folder of CUDA {use.cuda}, such as /usr/local/cuda-{use.cuda}, or leave it out: "
        "the role then brings one",
        "flashinfer-ai/flashinfer#3675",
    )


def other_toolkits(hardware: Hardware, use: Use) -> Iterator[Finding]:
    """The unit names its toolkit by its folder; what shells and the linker find first misleads people and their builds.
    One that merely lies there does nothing. Source: flashinfer-ai/flashinfer#3675.
    """
    used = _used(hardware, use)
    others = {
        tree.target: tree
        for tree in hardware.cuda_trees
        if tree is not used and {*tree.found} - {"folder"} and (tree.nvcc or tree.headers) not in ("", use.cuda)
    }
    if others:
        ways = {path: " and ".join(way for way in tree.found if way != "folder") for path, tree in others.items()}
        shown = ", ".join(
            f"{tree.path} ({tree.nvcc or tree.headers}, by {ways[path]})" for path, tree in others.items()
        )
        yield Finding(
            "cuda.others",
            "info",
            f"Other CUDA toolkits than the release's {use.cuda} are found first: {shown}",
            "The instance names its own by its folder; take the others out there, if shells and builds are to find the "
            "same",
            "flashinfer-ai/flashinfer#3675",
        )


RULES: tuple[Rule, ...] = (
    proprietary,
    mismatch,
    unreadable,
    unlisted,
    withheld,
    bound,
    old_driver,
    denied,
    secure_boot,
    next_kernel,
    unheld,
    persistence,
    mixed,
    mig,
    ecc,
    power,
    busy,
    held,
    iommu,
    acs,
    peers,
    width,
    generation,
    nvlinks,
    fabric,
    numa,
    xids,
    shared_memory,
    memlock,
    toolkit,
    other_toolkits,
)


CARDS: tuple[Rule, ...] = (
    *(mixed, mig, ecc, power, busy, held),
    *(iommu, acs, peers, width, generation, nvlinks, numa, shared_memory),
)
"""Rules about the GPUs of an instance, and what is between them."""


def _others(hardware: Hardware) -> list[GpuState]:
    """In a container whose nvidia-smi knows some GPUs: those that it does not know."""
    unknown = [gpu for gpu in hardware.gpus if gpu.index is None]
    return unknown if hardware.kernel.container and len(unknown) < len(hardware.gpus) else []


def _given(hardware: Hardware) -> Hardware:
    """The node without the GPUs that it was not given, and without what the machine's log says of those."""
    others = {gpu.address for gpu in _others(hardware)}
    if not others:
        return hardware
    xids = hardware.xids if hardware.xids is None else tuple(xid for xid in hardware.xids if xid.address not in others)
    return replace(hardware, gpus=tuple(gpu for gpu in hardware.gpus if gpu.address not in others), xids=xids)


def _own(hardware: Hardware, gpus: Sequence[int]) -> Hardware:
    """The node as if it had these GPUs only; as it is for none, or if it lacks one of them."""
    if not set(gpus) or not set(gpus) <= {gpu.index for gpu in hardware.gpus}:
        return hardware
    return replace(
        hardware,
        gpus=tuple(gpu for gpu in hardware.gpus if gpu.index in gpus),
        links={pair: word for pair, word in hardware.links.items() if set(pair) <= set(gpus)},
        peers={pair: words for pair, words in hardware.peers.items() if set(pair) <= set(gpus)},
    )


def _wrong_flavour(hardware: Hardware) -> bool:
    return hardware.driver.flavour == "proprietary" and any(gpu.architecture == "blackwell" for gpu in hardware.gpus)


def _explained(hardware: Hardware) -> bool:
    """Whether another rule says why nvidia-smi does not know the cards."""
    return _wrong_flavour(hardware) or _differ(hardware.driver.version, _library(hardware.driver))


def _library(driver: Driver) -> str:
    """The user library's version: as installed, else as NVML tells it in its complaint."""
    told = re.search(r"NVML library version: ([\d.]+)", driver.complaint)
    return driver.library or (told[1].rstrip(".") if told else "")


def _differ(module: str, library: str) -> bool:
    """Whether two versions differ as far as both are told: NVML names two parts of three."""
    pairs = list(zip(_version(module), _version(library), strict=False))
    return bool(pairs) and any(first != second for first, second in pairs)


def _direct(hardware: Hardware) -> bool:
    """Whether there are GPUs that may reach each other over PCIe alone. Where the driver refuses it to all of them,
    NCCL does not try.
    """
    if len(hardware.gpus) < 2 or nvlinked(hardware):
        return False
    over_pcie = [pair for pair, word in hardware.links.items() if not word.startswith("NV")]
    told = [hardware.peers[pair] for pair in over_pcie if pair in hardware.peers]
    all_told = over_pcie and len(told) == len(over_pcie)
    return not (all_told and all(any(word not in ("", "OK") for word in words) for words in told))


def _fallback(use: Use, finding: Finding) -> Finding:
    """The finding as it counts for an instance that does without direct access, and the way to that for others."""
    if use.p2p_fallback:
        seen = f"{finding.seen}; sglang_server_p2p_fallback keeps the engine from it, at the cost of speed"
        return Finding(finding.id, "warning", seen, finding.remedy, finding.source)
    remedy = (
        f"{finding.remedy}. Or do without: sglang_server_p2p_fallback: true renders NCCL_P2P_DISABLE=1 and "
        "--disable-custom-all-reduce"
    )
    return Finding(finding.id, finding.severity, finding.seen, remedy, finding.source)


def _host(hardware: Hardware) -> str:
    return "On the machine that this container is on: " if hardware.kernel.container else ""


def _fabric(gpu: GpuState) -> tuple[str, str]:
    """State and status; empty on a card without a fabric."""
    state, status = ("" if word in ("N/A", "Not Supported") else word for word in gpu.fabric)
    return state, status


def _used(hardware: Hardware, use: Use) -> CudaTree | None:
    """The tree that the release's kernels are compiled with, if it is among those that were looked at."""
    path = use.toolkit.rstrip("/")
    exact = (tree for tree in hardware.cuda_trees if path and tree.path == path)
    return next(exact, next((tree for tree in hardware.cuda_trees if path and tree.target == path), None))


def _named(cards: Sequence[GpuState]) -> str:
    """``GPU 3``, or ``GPUs 0, 1``; by address where nvidia-smi has no number."""
    names = [gpu.address if gpu.index is None else str(gpu.index) for gpu in cards]
    return f"GPU{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _version(text: str) -> tuple[int, ...]:
    """Every number of a version, for comparing: ``6.8.0-90-generic`` is (6, 8, 0, 90)."""
    return tuple(int(part) for part in re.findall(r"\d+", text))
