# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One reading of a node's hardware: nvidia-smi, the PCI bus, kernel, driver, memory, CUDA toolkits. Changes nothing.

What may not be read, or is not there, is None or empty. Needs no root, but ACS and often the kernel's log are for root.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ansible_collections.inference.sglang.plugins.module_utils import node, pci, probes
from ansible_collections.inference.sglang.plugins.module_utils.hardware import (
    UNLIMITED,
    CudaTree,
    Driver,
    Flavour,
    GpuState,
    Hardware,
    Iommu,
    Kernel,
    Memory,
    Xid,
)
from ansible_collections.inference.sglang.plugins.module_utils.nvidia_smi import Owner, Smi, Told, tell

KIB = 1 << 10
KERNEL_LOG = 64 << 20  # bytes that are read of it, at most

_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""UEFI specification, global variables: four bytes of attributes, then one that is 1 where it is on."""

_SIGNING_KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")
"""Where Ubuntu's shim-signed and where DKMS keep the certificate that signs modules."""

_PACKAGES = re.compile(
    r"nvidia-|libnvidia-|xserver-xorg-video-nvidia|(linux-(modules|objects|signatures)|firmware)-nvidia-|"
    r"cuda(-|$)|libcuda|libcu(blas|dnn|fft|file|rand|solver|sparse)|libnccl|libnv(jitlink|vm|rtc|infer|jpeg)|nsight-|"
    r"datacenter-gpu-manager|nvlsm|libnvsdm"
)

_FIRST_PIDS = "pid:[4026531836]"
"""PROC_PID_INIT_INO of include/linux/proc_ns.h."""

_MODULE = re.compile(r"(?:.*/)?nvidia(?:-current|-tesla(?:-\d+)?)?(?:-open)?\.ko(?:\.\w+)?")
"""The driver's own module in modules.dep; Debian's names are nvidia-current.ko and nvidia-current-open.ko."""

_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?(\w+)=(.*)$", re.MULTILINE)
"""A variable in a shell's file or in /etc/environment."""

_XID = re.compile(r"NVRM: Xid \((?P<address>[^)]*)\): (?P<code>\d+)(?:,\s*(?P<message>.*))?")

_LIBRARY_FOLDERS = tuple(os.path.dirname(path) for path in node.DRIVER_LIBRARIES)


def read(
    ask: probes.Ask = probes.ask, root: Path = Path("/"), paths: Iterable[str] = (), smi: Smi | None = None
) -> Hardware:
    """Read a node. Files come from below ``root``; tools are run by ``ask``.

    ``paths``  whose free space is wanted; they need not exist
    ``smi``    nvidia-smi's answers where some were asked for already
    """
    root = root.resolve()
    told = tell(smi or Smi(ask), owner_below(root))
    cards = gpus(told.gpus, root)
    return Hardware(
        driver=driver(told, ask, root),
        gpus=cards,
        links=told.links,
        peers=told.peers,
        kernel=kernel([gpu.iommu_type for gpu in cards], root),
        memory=memory(ask, root),
        xids=xids(ask, root),
        cuda_trees=tuple(cuda_trees(ask, root)),
        spaces={path: node.space(path, root) for path in paths},
    )


def owner_below(root: Path) -> Owner:
    """Tells unit and control group of a process by its pid."""

    def owner(pid: int) -> tuple[str, str]:
        process = root / "proc" / str(pid)
        return node.unit_of(process), node.cgroup_of(process)

    return owner


def gpus(told: Sequence[GpuState], root: Path) -> tuple[GpuState, ...]:
    """What nvidia-smi says of each GPU of the bus, with what the bus says."""
    states = {state.address: state for state in told}
    for device in node.gpus(root):
        state = states.get(device.address, GpuState(address=device.address))
        states[device.address] = _on_bus(replace(state, device=device.device), root)
    return tuple(states[address] for address in sorted(states))


def _on_bus(state: GpuState, root: Path) -> GpuState:
    folder = root / pci.DEVICES / state.address
    group, kind = pci.iommu_group(state.address, root)
    numa = probes.number(folder / "numa_node")
    return replace(
        state,
        architecture=state.architecture or pci.architecture(state.device),
        pcie_generation=state.pcie_generation or pci.generation(probes.word(folder / "current_link_speed")),
        pcie_generation_max=state.pcie_generation_max or pci.generation(probes.word(folder / "max_link_speed")),
        pcie_width=state.pcie_width or probes.number(folder / "current_link_width"),
        pcie_width_max=state.pcie_width_max or probes.number(folder / "max_link_width"),
        bound_to=pci.bound_to(state.address, root),
        # The kernel says -1 where the firmware tells no node.
        numa=numa if numa is not None and numa >= 0 else None,
        iommu_group=group,
        iommu_type=kind,
        bridges=pci.bridges(state.address, root),
    )


def kernel(iommu_types: Sequence[str], root: Path) -> Kernel:
    """The running kernel. ``iommu_types``: those of the GPUs' groups."""
    command_line = probes.text(root / "proc/cmdline").strip()
    units = root / "sys/class/iommu"
    return Kernel(
        release=probes.word(root / "proc/sys/kernel/osrelease"),
        command_line=command_line,
        iommu=iommu(command_line, bool(probes.entries(units)) if units.is_dir() else None, iommu_types),
        container=container(root),
    )


def iommu(command_line: str, units: bool | None, types: Sequence[str]) -> Iommu:
    """How devices are treated: by the domains of their groups, else by the kernel's command line.

    ``units``  whether the kernel runs an IOMMU; None where it does not tell
    ``types``  of the groups' domains: ``DMA``, ``DMA-FQ``, ``identity``, or others where a guest has the device
    """
    if units is False:
        return "off"
    if any(kind.startswith("DMA") for kind in types):
        return "translated"
    if "identity" in types:
        return "passthrough"
    # kernel-parameters.txt of Linux; a value may be a list.
    found: Iommu = ""
    for name, value in (word.split("=", 1) for word in command_line.split() if "=" in word):
        values = value.split(",")
        if name in ("iommu", "intel_iommu", "amd_iommu") and "off" in values:
            found = "off"
        elif (name == "iommu" and "pt" in values) or (name == "iommu.passthrough" and value in ("1", "y", "on")):
            found = "passthrough"
        elif (name == "iommu" and "nopt" in values) or (name == "iommu.passthrough" and value in ("0", "n", "off")):
            found = "translated"
    return found


def container(root: Path) -> str:
    """systemd's name of the kind of container that the node is, from where that looks: systemd-detect-virt(1).

    Kubernetes leaves no mark; a process that is not of the kernel's first namespace of processes is in some container.
    """
    marked = probes.word(root / "run/systemd/container")
    if marked:
        return marked
    for entry in probes.data(root / "proc/1/environ", 1 << 20).split(b"\0"):
        if entry.startswith(b"container="):
            return entry.partition(b"=")[2].decode("utf-8", "replace")
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    with contextlib.suppress(OSError):
        return "" if os.readlink(root / "proc/self/ns/pid") == _FIRST_PIDS else "container-other"
    return ""


def memory(ask: probes.Ask, root: Path) -> Memory:
    """Memory, ``/dev/shm``, and limits on both."""
    lines = probes.text(root / "proc/meminfo").splitlines()
    amounts = {line.split(":")[0]: line.split()[1:] for line in lines if ":" in line}

    def amount(name: str) -> int | None:
        value = amounts.get(name, [])
        return int(value[0]) * KIB if value[1:] == ["kB"] and value[0].isdecimal() else None

    size = free = None
    with contextlib.suppress(OSError):
        status = os.statvfs(root / "dev/shm")
        size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    policy = re.search(r"\[(\w+)\]", probes.word(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    return Memory(
        total=amount("MemTotal"),
        available=amount("MemAvailable"),
        shm_size=size,
        shm_free=free,
        memlock=_memlock(_ask(ask, "systemctl", "show", "--property=DefaultLimitMEMLOCK")[0]),
        hugepages=policy[1] if policy else "",
        huge_reserved=_huge_pages(root),
    )


def _memlock(shown: str) -> int | None:
    value = shown.strip().rpartition("=")[2]
    return UNLIMITED if value == "infinity" else int(value) if value.isdecimal() else None


def _huge_pages(root: Path) -> int | None:
    """Their number by size: Documentation/admin-guide/mm/hugetlbpage.rst of Linux."""
    folder = root / "sys/kernel/mm/hugepages"
    sizes = [(name, re.fullmatch(r"hugepages-(\d+)kB", name)) for name in probes.entries(folder)]
    pages = [(probes.number(folder / name / "nr_hugepages") or 0) * int(size[1]) for name, size in sizes if size]
    return sum(pages) * KIB if pages else None


def driver(told: Told, ask: probes.Ask, root: Path) -> Driver:
    """The driver, loaded and installed."""
    version, flavour = loaded(probes.text(root / "proc/driver/nvidia/version"))
    kernels = [
        name for name in probes.entries(root / "lib/modules") if (root / "lib/modules" / name / "kernel").is_dir()
    ]
    packages, held = installed_packages(root)
    return Driver(
        version=version or probes.word(root / "sys/module/nvidia/version") or told.driver,
        flavour=flavour,
        library=library(root),
        cuda=told.cuda,
        complaint=told.complaint,
        persistenced=_persistenced(root),
        packages=packages,
        held=held,
        kernels={name: _has_module(root / "lib/modules" / name) for name in kernels},
        headers={name: _has_headers(name, root) for name in kernels},
        secure_boot=secure_boot(ask, root),
        key_enrolled=key_enrolled(ask, root),
    )


def loaded(text: str) -> tuple[str, Flavour]:
    """Version and flavour by ``/proc/driver/nvidia/version``; both empty where that is not there, or says neither.

    ``NVIDIA UNIX x86_64 Kernel Module  580.95.05`` is proprietary, ``NVIDIA UNIX Open Kernel Module for x86_64`` open.
    """
    line = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    found = re.search(r"Kernel Module(?: for \w+)?\s+(\d+\.\d+(?:\.\d+)?)", line)
    if not found:
        return "", ""
    return found[1], "open" if "Open Kernel Module" in line else "proprietary"


def library(root: Path) -> str:
    """Version of the driver's libcuda that programs find: in the linker's own folders, then in those of distributions.

    That of CUDA's forward compatibility is not the driver's, and of another version by its purpose. In containers it is
    found first: NVIDIA/nvidia-container-toolkit#906.
    """
    for folder in (*linker_folders(root), *_LIBRARY_FOLDERS):
        if "compat" in probes.resolve(folder, root).split("/"):
            continue
        target = probes.resolve(f"{folder}/libcuda.so.1", root)
        found = re.fullmatch(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)", os.path.basename(target))
        if found and probes.below(root, target).exists():
            return found[1]
    return ""


def linker_folders(root: Path) -> list[str]:
    """Those of ``/etc/ld.so.conf.d``, in its order: ldconfig(8)."""
    lines = [line for path in _files(root / "etc/ld.so.conf.d", ".conf") for line in probes.text(path).splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.startswith("/")]


def _files(folder: Path, suffix: str) -> list[Path]:
    return [folder / name for name in probes.entries(folder) if name.endswith(suffix)]


def _persistenced(root: Path) -> bool | None:
    """Whether the daemon runs; the kernel keeps 15 characters of a command."""
    processes = [name for name in probes.entries(root / "proc") if name.isdecimal()]
    if not processes:
        return None
    return any(probes.word(root / "proc" / name / "comm") == "nvidia-persiste" for name in processes)


def installed_packages(root: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Versions of installed packages of driver, its libraries and CUDA, and the names of those on hold."""
    versions, held = {}, []
    for stanza in probes.stanzas(root / "var/lib/dpkg/status"):
        name, status = stanza.get("Package", ""), stanza.get("Status", "").split()
        if status[2:] == ["installed"] and _PACKAGES.match(name):
            versions[name] = stanza.get("Version", "")
            if status[0] == "hold":
                held.append(name)
    return versions, tuple(sorted(held))


def _has_module(folder: Path) -> bool:
    """Whether modprobe would find the driver: modules.dep(5)."""
    lines = probes.text(folder / "modules.dep", 16 << 20).splitlines()
    return any(_MODULE.fullmatch(line.partition(":")[0]) for line in lines)


def _has_headers(name: str, root: Path) -> bool:
    build = probes.resolve(f"/lib/modules/{name}/build", root)
    return (probes.below(root, build) / "Makefile").is_file()


def secure_boot(ask: probes.Ask, root: Path) -> bool | None:
    """Whether Secure Boot is on: by the firmware's variable, else by mokutil."""
    variable = probes.data(root / _SECURE_BOOT, 5)
    if len(variable) == 5:
        return variable[4] == 1
    state = re.search(r"SecureBoot (enabled|disabled)", " ".join(_ask(ask, "mokutil", "--sb-state")))
    return state[1] == "enabled" if state else None


def key_enrolled(ask: probes.Ask, root: Path) -> bool | None:
    """Whether firmware or shim know the key that signs DKMS modules; None without such a key, or without mokutil.

    Which status mokutil ends with is not the same in all its versions.
    """
    key = next((path for path in _SIGNING_KEYS if probes.below(root, path).is_file()), "")
    said = " ".join(_ask(ask, "mokutil", "--test-key", str(probes.below(root, key)))) if key else ""
    if re.search(r"is not enrolled|in the enrollment request|is blocked", said):
        return False
    return True if re.search(r"is (already )?enrolled", said) else None


def _ask(ask: probes.Ask, program: str, *arguments: str) -> tuple[str, str]:
    """What a tool prints, or its complaint; neither where it is not there."""
    try:
        return ask(program, *arguments)
    except FileNotFoundError:
        return "", ""


def xids(ask: probes.Ask, root: Path) -> tuple[Xid, ...] | None:
    """What the driver reported of GPUs since boot; None where the kernel's log cannot be read.

    The journal has all, the kernel's buffer the last of it. To whoever may not read it the journal shows nothing.
    """
    journal, _why = _ask(ask, "journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=cat")
    log = journal if journal.strip() else kernel_buffer(root / "dev/kmsg")
    return None if log is None else parse_xids(log)


def parse_xids(log: str) -> tuple[Xid, ...]:
    """One entry a GPU and error, in the order of their first lines: ``NVRM: Xid (PCI:0000:3b:00): 79, …``."""
    found: dict[tuple[str, int], Xid] = {}
    for line in log.splitlines():
        match = _XID.search(line)
        if match:
            address, code = pci.address(match["address"]) or match["address"], int(match["code"])
            times = found[address, code].times + 1 if (address, code) in found else 1
            message = re.sub(r"GPU-[0-9a-f-]{36}", "GPU", match["message"] or "").strip()
            found[address, code] = Xid(address=address, code=code, times=times, message=message[:200])
    return tuple(found.values())


def kernel_buffer(path: Path) -> str | None:
    """The messages in the kernel's buffer, which is only told to root on many nodes: /dev/kmsg."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    records = bytearray()
    try:
        while len(records) < KERNEL_LOG:
            try:
                record = os.read(descriptor, 8192)
            except BrokenPipeError:  # overwritten meanwhile: the next read goes on after the gap
                continue
            except BlockingIOError:  # all read
                break
            if not record:
                break
            records += record
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return records.decode("utf-8", "replace")


def cuda_trees(ask: probes.Ask, root: Path) -> Iterator[CudaTree]:
    """The toolkits that a build might find, in the order of their paths."""
    places: dict[str, list[str]] = {}
    for path, how in _cuda_places(root):
        found = places.setdefault(path, [])
        if how not in found:
            found.append(how)
    versions: dict[str, tuple[str, str]] = {}
    for path in sorted(places):
        target = probes.resolve(path, root)
        if target not in versions:
            versions[target] = nvcc_version(target, ask, root), header_version(target, root)
        nvcc, headers = versions[target]
        if nvcc or headers:
            yield CudaTree(path=path, target=target, found=tuple(places[path]), nvcc=nvcc, headers=headers)


def _cuda_places(root: Path) -> Iterator[tuple[str, str]]:
    for name in probes.entries(root / "usr/local"):
        if re.fullmatch(r"cuda(-[\d.]+)?", name):
            yield f"/usr/local/{name}", "folder"
    for path in ("/opt/cuda", "/usr/lib/cuda", "/usr/lib/nvidia-cuda-toolkit"):
        if probes.below(root, path).is_dir():
            yield path, "folder"
    first = next((tree for tree in _with_nvcc(os.environ.get("PATH", ""), root)), "")
    if first:
        yield first, "PATH"
    for profile in (root / "etc/environment", *_files(root / "etc/profile.d", ".sh")):
        for name, value in _ASSIGNMENT.findall(probes.text(profile)):
            folders = value.split("#")[0].strip().strip("\"'")
            if name in ("CUDA_HOME", "CUDA_PATH") and folders.startswith("/"):
                yield os.path.normpath(folders), "CUDA_HOME"
            elif name == "PATH":
                yield from ((tree, "profile") for tree in _with_nvcc(folders, root))
    for folder in linker_folders(root):
        tree = re.split(r"/targets/|/lib(?:64)?(?:/|$)", folder.removeprefix("/usr/lib/"))[0]
        if "cuda" in tree:
            yield tree if tree.startswith("/") else f"/usr/lib/{tree}", "ld.so.conf"


def _with_nvcc(folders: str, root: Path) -> Iterator[str]:
    """The trees of the nvcc in these folders, in the order of a PATH. A link among other programs leads to one."""
    for folder in folders.split(":"):
        nvcc = os.path.normpath(f"{folder}/nvcc")
        target = probes.resolve(nvcc, root)
        if folder.startswith("/") and probes.below(root, target).exists():
            linked = probes.below(root, nvcc).is_symlink()
            yield os.path.dirname(os.path.dirname(target if linked else nvcc))


def nvcc_version(tree: str, ask: probes.Ask, root: Path) -> str:
    """By itself, as a tree's version.json may tell of another; by that where it does not run."""
    said, _why = _ask(ask, str(probes.below(root, f"{tree}/bin/nvcc")), "--version")
    found = re.search(r"release (\d+\.\d+)", said)
    if found:
        return found[1]
    try:
        version = json.loads(probes.text(probes.below(root, f"{tree}/version.json")))["cuda_nvcc"]["version"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    short = re.match(r"\d+\.\d+", str(version))
    return short[0] if short else ""


def header_version(tree: str, root: Path) -> str:
    """By CUDART_VERSION, which is 13000 for 13.0."""
    path = probes.resolve(f"{tree}/include/cuda_runtime_api.h", root)
    header = probes.text(probes.below(root, path))
    found = re.search(r"^\s*#define\s+CUDART_VERSION\s+(\d+)", header, re.MULTILINE)
    return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}" if found else ""
