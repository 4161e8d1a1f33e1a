# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes read from a tree that stands for one: the recorded one with two H200, and parts made here."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import recorded
from ansible_collections.inference.sglang.plugins.module_utils import probes, readings
from ansible_collections.inference.sglang.plugins.module_utils.hardware import UNLIMITED, CudaTree, Hardware, Xid

XML = "nvidia-smi -q -x"
EIGHT = ("01", "21", "41", "61", "81", "a1", "c1", "e1")
REDIRECTED = ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", "/usr/bin")
    return tmp_path


def write(root: Path, name: str, text: str | bytes = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def link(root: Path, name: str, target: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to(target)


def silent(_program: str, *_arguments: str) -> tuple[str, str]:
    raise FileNotFoundError


def says(**answers: str) -> probes.Ask:
    """Tools by name, each with its one answer; ``!`` begins a complaint."""

    def ask(program: str, *_arguments: str) -> tuple[str, str]:
        text = answers.get(os.path.basename(program))
        if text is None:
            raise FileNotFoundError
        return ("", text[1:]) if text.startswith("!") else (text, "")

    return ask


def eight(root: Path, acs: tuple[str, ...] = REDIRECTED, kind: str = "DMA-FQ") -> None:
    """The bus of a server with eight RTX PRO 6000, each below a root port of its own."""
    for number, bus in enumerate(EIGHT):
        above = f"pci0000:{number}0/0000:{number}0:01.1"
        path = recorded.device(root, above, vendor="0x1022", _class="0x060400")
        (path / "config").write_bytes(recorded.bridge_config(acs))
        card = recorded.device(
            root,
            f"{above}/0000:{bus}:00.0",
            vendor="0x10de",
            device="0x2bb5",
            _class="0x030200",
            numa_node=str(number // 4),
            current_link_speed="2.5 GT/s PCIe",
            max_link_speed="32.0 GT/s PCIe",
            current_link_width="8",
            max_link_width="16",
        )
        write(root, f"sys/kernel/iommu_groups/{number}/type", f"{kind}\n")
        link(card, "iommu_group", f"/sys/kernel/iommu_groups/{number}")
    write(root, "sys/class/iommu/ivhd0")


def test_two_h200_as_recorded(root: Path) -> None:
    recording = recorded.load("two_h200")
    recorded.plant(recording, root)
    asked: list[str] = []
    read = readings.read(recorded.ask(recording["answers"], root, asked), root, ["/opt/sglang"])
    assert len(asked) == len(set(asked))
    assert (read.driver.version, read.driver.flavour, read.driver.library) == ("580.159.04", "open", "580.159.04")
    assert (read.driver.cuda, read.driver.complaint, read.driver.persistenced) == ("13.0", "", False)
    assert read.driver.held == ("libcublas-13-0", "libnccl-dev", "libnccl2")
    assert read.driver.packages["cuda-compat-13-0"] == "580.95.05-0ubuntu1"
    assert "libc6" not in read.driver.packages
    assert [(gpu.device, gpu.bound_to, gpu.numa, gpu.bridges) for gpu in read.gpus] == [
        ("0x2335", "nvidia", None, ())
    ] * 2
    assert (read.links, read.peers) == ({(0, 1): "NV18"}, {(0, 1): ("OK", "OK")})
    assert (read.kernel.iommu, read.kernel.container, read.kernel.release) == ("off", "docker", "6.18.44-fc-v657-gpu")
    assert (read.memory.total, read.memory.available) == (263998500 << 10, 263353068 << 10)
    assert (read.memory.hugepages, read.memory.huge_reserved, read.memory.shm_size) == ("madvise", 0, None)
    assert read.xids == ()
    assert {(tree.target, tree.nvcc, tree.headers) for tree in read.cuda_trees} == {
        ("/usr/local/cuda-13.0", "13.0", "13.0")
    }
    assert [tree.path for tree in read.cuda_trees] == ["/usr/local/cuda", "/usr/local/cuda-13", "/usr/local/cuda-13.0"]
    assert read.spaces["/opt/sglang"].free_bytes > 0
    assert Hardware.from_dict(json.loads(json.dumps(read.to_dict()))) == read


def test_nothing_that_tells_one_machine_from_another(root: Path) -> None:
    recording = recorded.load("two_h200")
    recorded.plant(recording, root)
    query = (recorded.DATA / "gpus/two_h200.xml").read_text()
    for name in ("serial", "uuid", "pdi", "board_id", "clusterUuid", "gpu_fabric_guid"):
        query = re.sub(rf"<{name}>[^<]*<", f"<{name}>GPU-SECRET<", query)
    status = recording["answers"]["nvidia-smi nvlink --status"].replace("GPU-0", "GPU-SECRET")
    answers = {**recording["answers"], XML: query, "nvidia-smi nvlink --status": status}
    write(
        root, "dev/kmsg", "4,1,1,-;NVRM: Xid (PCI:0000:00:06): 79, GPU-1234abcd-12ab-12ab-12ab-1234567890ab is lost\n"
    )
    told = json.dumps(readings.read(recorded.ask(answers, root), root).to_dict())
    assert "H200" in told
    assert "SECRET" not in told
    assert "1234abcd" not in told


def test_a_bus_without_a_driver(root: Path) -> None:
    eight(root)
    read = readings.read(silent, root)
    assert [gpu.address for gpu in read.gpus] == [f"0000:{bus}:00.0" for bus in EIGHT]
    gpu = read.gpus[5]
    assert (gpu.index, gpu.device, gpu.architecture, gpu.product, gpu.numa) == (None, "0x2bb5", "blackwell", "", 1)
    assert (gpu.pcie_generation, gpu.pcie_generation_max, gpu.pcie_width, gpu.pcie_width_max) == (1, 5, 8, 16)
    assert [(bridge.address, bridge.acs) for bridge in gpu.bridges] == [("0000:50:01.1", REDIRECTED)]
    assert (gpu.iommu_group, gpu.iommu_type, gpu.bound_to, read.kernel.iommu) == ("5", "DMA-FQ", "", "translated")
    assert read.driver == type(read.driver)(persistenced=None)


def test_what_nvidia_smi_and_the_bus_tell_is_joined_by_address(root: Path) -> None:
    eight(root, (), "identity")
    query = (recorded.DATA / "gpus/eight_rtx_pro_6000_orphans.xml").read_text()
    last = re.compile(r'(?s)<gpu id="00000000:E1:00.0">.*?</gpu>')
    lost = last.sub("", query).replace("<attached_gpus>8", "<attached_gpus>7")
    lost = lost.replace(">Blackwell<", ">Rubin<", 1)
    write(root, "proc/41000/cgroup", "0::/system.slice/sglang-default.service\n")
    read = readings.read(recorded.ask({XML: lost}, root), root)
    assert [(gpu.index, gpu.device) for gpu in read.gpus] == [*((n, "0x2bb5") for n in range(7)), (None, "0x2bb5")]
    assert {gpu.bridges[0].acs for gpu in read.gpus} == {()}
    assert [read.gpus[n].architecture for n in (0, 1, 7)] == ["rubin", "blackwell", "blackwell"]
    assert [(read.gpus[n].pcie_generation, read.gpus[n].pcie_width) for n in (0, 7)] == [(5, 16), (1, 8)]
    assert (read.gpus[0].numa, read.gpus[7].numa, read.kernel.iommu) == (0, 1, "passthrough")
    assert read.gpus[0].processes[0].unit == "sglang-default.service"
    assert read.driver.version == "580.95.05", "by nvidia-smi where /proc does not tell"


def test_a_node_whose_bus_is_hidden(root: Path) -> None:
    recording = recorded.load("two_h200")
    read = readings.read(recorded.ask(recording["answers"], root), root)
    assert [(gpu.address, gpu.index, gpu.device) for gpu in read.gpus] == [
        ("0000:00:06.0", 0, ""),
        ("0000:00:07.0", 1, ""),
    ]


def test_a_library_of_another_version_than_the_module(root: Path) -> None:
    """Field case C04: the package's files were replaced under the loaded module."""
    write(root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Mon Jan  5\n")
    write(root, "usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08")
    link(root, "usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.580.105.08")
    write(
        root,
        "var/lib/dpkg/status",
        "Package: libnvidia-compute-580\nStatus: install ok installed\nVersion: 580.105.08-0ubuntu1\n",
    )
    failed = "nvidia-smi -q -x ended with status 18: Failed to initialize NVML: Driver/library version mismatch"
    read = readings.read(recorded.ask({XML: f"!{failed}"}, root), root).driver
    assert (read.version, read.library, read.flavour) == ("580.95.05", "580.105.08", "proprietary")
    assert (read.complaint, read.held) == (failed, ())
    assert read.packages == {"libnvidia-compute-580": "580.105.08-0ubuntu1"}


@pytest.mark.parametrize(
    ("text", "loaded"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder)\nGCC",
            ("580.95.05", "open"),
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.82  Release Build", ("580.82", "open")),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19", ("535.104.05", "proprietary")),
        (
            "GCC version:  gcc version 13.3.0\nNVRM version: NVIDIA UNIX aarch64 Kernel Module  580.1",
            ("580.1", "proprietary"),
        ),
        ("NVRM version: NVIDIA UNIX Open Ker", ("", "")),
        ("", ("", "")),
    ],
)
def test_flavour_and_version_of_the_module(text: str, loaded: tuple[str, str]) -> None:
    assert readings.loaded(text) == loaded


@pytest.mark.parametrize(
    ("command_line", "units", "types", "mode"),
    [
        ("ro quiet", False, (), "off"),
        ("ro quiet iommu=pt", False, (), "off"),  # asked for, and none there
        ("ro quiet iommu=pt", True, ("DMA-FQ",), "translated"),  # the kernel says how it is
        ("ro quiet", True, ("identity", "DMA"), "translated"),
        ("ro quiet", True, ("identity", "identity"), "passthrough"),
        ("ro iommu=pt", True, (), "passthrough"),
        ("ro iommu=pt", None, ("unmanaged",), "passthrough"),
        ("ro intel_iommu=on,sm_on iommu=pt", None, (), "passthrough"),
        ("ro amd_iommu=on iommu.passthrough=1", None, (), "passthrough"),
        ("ro iommu.passthrough=0", None, (), "translated"),
        ("ro iommu=pt iommu=nopt", None, (), "translated"),  # the last word counts
        ("ro amd_iommu=off", None, (), "off"),
        ("ro intel_iommu=off", None, (), "off"),
        ("ro iommu=off", None, (), "off"),
        ("ro quiet", True, (), ""),
        ("ro quiet", None, (), ""),
        ("", None, ("",), ""),
    ],
)
def test_mode_of_the_iommu(command_line: str, units: bool | None, types: tuple[str, ...], mode: str) -> None:
    assert readings.iommu(command_line, units, types) == mode


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"run/systemd/container": "systemd-nspawn\n", ".dockerenv": ""}, "systemd-nspawn"),
        ({"proc/1/environ": "PATH=/bin\0container=lxc\0", "run/.containerenv": ""}, "lxc"),
        ({"run/.containerenv": "", ".dockerenv": ""}, "podman"),
        ({".dockerenv": "", "proc/1/environ": "PATH=/bin\0"}, "docker"),
        ({}, ""),
    ],
)
def test_kind_of_container(root: Path, files: dict[str, str], kind: str) -> None:
    for name, text in files.items():
        write(root, name, text)
    assert readings.container(root) == kind


@pytest.mark.parametrize(("pids", "kind"), [("pid:[4026531836]", ""), ("pid:[4026533012]", "container-other")])
def test_a_container_without_a_mark(root: Path, pids: str, kind: str) -> None:
    """A pod of Kubernetes."""
    link(root, "proc/self/ns/pid", pids)
    assert readings.container(root) == kind


@pytest.mark.parametrize(
    ("shown", "limit"),
    [
        ("DefaultLimitMEMLOCK=8388608\n", 8388608),
        ("DefaultLimitMEMLOCK=infinity\n", UNLIMITED),
        ("DefaultLimitMEMLOCK=18446744073709551615\n", UNLIMITED),
        ("DefaultLimitMEMLOCK=\n", None),
        ("!systemctl show ended with status 1: System has not been booted with systemd as init system", None),
    ],
)
def test_memory_that_a_service_may_lock(root: Path, shown: str, limit: int | None) -> None:
    assert readings.memory(says(systemctl=shown), root).memlock == limit


def test_memory(root: Path) -> None:
    write(root, "proc/meminfo", "MemTotal:       1000 kB\nHugePages_Total:       5\nMemAvailable: many kB\ncut")
    write(root, "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    write(root, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n")
    write(root, "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "1\n")
    (root / "dev/shm").mkdir(parents=True)
    read = readings.memory(silent, root)
    assert (read.total, read.available, read.hugepages) == (1024000, None, "never")
    assert read.huge_reserved == (3 << 21) + (1 << 30)
    status = os.statvfs(root)
    assert read.shm_size == status.f_blocks * status.f_frsize
    assert read.shm_free is not None
    assert 0 < read.shm_free < read.shm_size
    (root / "dev/shm").rmdir()
    assert readings.memory(silent, root).shm_size is None


def kernel(root: Path, name: str, *modules: str, headers: bool = True) -> None:
    write(root, f"lib/modules/{name}/kernel/fs.ko")
    write(
        root, f"lib/modules/{name}/modules.dep", "kernel/fs/ext4.ko:\n" + "".join(f"{path}: a.ko\n" for path in modules)
    )
    link(root, f"lib/modules/{name}/build", f"/usr/src/linux-headers-{name}")
    if headers:
        write(root, f"usr/src/linux-headers-{name}/Makefile")


def test_kernels_with_module_and_headers(root: Path) -> None:
    """Field case C05: the next boot would be into a kernel that has neither."""
    kernel(root, "6.8.0-90-generic", "updates/dkms/nvidia.ko.zst", "updates/dkms/nvidia-drm.ko.zst")
    kernel(root, "6.8.0-101-generic", "kernel/drivers/video/fbdev/nvidia/nvidiafb.ko.zst", headers=False)
    write(root, "lib/modules/6.8.0-80-generic/updates/dkms/nvidia.ko")  # what DKMS left of a removed kernel
    read = readings.read(silent, root).driver
    assert read.kernels == {"6.8.0-101-generic": False, "6.8.0-90-generic": True}
    assert read.headers == {"6.8.0-101-generic": False, "6.8.0-90-generic": True}


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("kernel/nvidia-580-open/nvidia.ko", True),
        ("updates/dkms/nvidia-current-open.ko.xz", True),
        ("updates/dkms/nvidia-current.ko", True),
        ("updates/dkms/nvidia-tesla-535.ko", True),
        ("updates/dkms/nvidia-current-open-drm.ko.xz", False),
        ("updates/dkms/nvidia-uvm.ko", False),
        ("kernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko", False),
    ],
)
def test_names_of_the_module(root: Path, module: str, found: bool) -> None:
    kernel(root, "6.8", module)
    assert readings.read(silent, root).driver.kernels == {"6.8": found}


@pytest.mark.parametrize(
    ("variable", "said", "on"),
    [
        (b"\x06\0\0\0\x01", None, True),
        (b"\x06\0\0\0\x00", "SecureBoot enabled", False),
        (None, "SecureBoot enabled\n", True),
        (None, "SecureBoot disabled\nPlatform is in Setup Mode\n", False),
        (None, "!mokutil --sb-state ended with status 255: EFI variables are not supported on this system", None),
        (None, None, None),
        (b"\x06", None, None),
    ],
)
def test_secure_boot(root: Path, variable: bytes | None, said: str | None, on: bool | None) -> None:
    if variable is not None:
        write(root, "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", variable)
    assert readings.secure_boot(says(**({"mokutil": said} if said else {})), root) is on


@pytest.mark.parametrize(
    ("said", "enrolled"),
    [
        ("!mokutil --test-key ended with status 1: /var/lib/dkms/mok.pub is already enrolled", True),
        ("/var/lib/dkms/mok.pub is not enrolled\n", False),
        ("!mokutil --test-key ended with status 1: /var/lib/dkms/mok.pub is not enrolled", False),
        ("/var/lib/dkms/mok.pub is already in the enrollment request\n", False),
        ("!EFI variables are not supported on this system", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("key", ["var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der"])
def test_key_that_signs_modules(root: Path, key: str, said: str | None, enrolled: bool | None) -> None:
    ask = says(**({"mokutil": said} if said else {}))
    assert readings.key_enrolled(ask, root) is None, "without a key"
    write(root, key)
    assert readings.key_enrolled(ask, root) is enrolled


def test_the_daemon_that_keeps_the_driver_loaded(root: Path) -> None:
    write(root, "proc/1/comm", "systemd\n")
    assert readings.read(silent, root).driver.persistenced is False
    write(root, "proc/900/comm", "nvidia-persiste\n")
    assert readings.read(silent, root).driver.persistenced is True


LOG = """\
NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05
NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault
NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
NVRM: Xid (PCI:0000:A1:00): 79, GPU has fallen off the bus.
NVRM: Xid (PCI:0000:3b:00): 31, pid=4712, name=python3, the second
NVRM: Xid (PCI:0000:3b:00): 154
"""
XIDS = [("0000:3b:00.0", 31, 2), ("0000:3b:00.0", 79, 1), ("0000:a1:00.0", 79, 1), ("0000:3b:00.0", 154, 1)]


def told(found: tuple[Xid, ...] | None) -> list[tuple[str, int, int]] | None:
    return None if found is None else [(xid.address, xid.code, xid.times) for xid in found]


def test_errors_that_the_driver_reported(root: Path) -> None:
    found = readings.xids(says(journalctl=LOG), root)
    assert told(found) == XIDS
    assert found is not None
    assert [xid.message for xid in found] == [
        "pid=4712, name=python3, the second",
        "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "GPU has fallen off the bus.",
        "",
    ]


@pytest.mark.parametrize("journal", [None, "", "!journalctl ended with status 1: No journal files were opened"])
def test_without_a_journal_the_buffer_is_read(root: Path, journal: str | None) -> None:
    ask = says(**({} if journal is None else {"journalctl": journal}))
    assert readings.xids(ask, root) is None, "neither is there"
    records = "".join(f"4,{n},{n}000,-;{line}\n SUBSYSTEM=pci\n" for n, line in enumerate(LOG.splitlines()))
    write(root, "dev/kmsg", records)
    assert told(readings.xids(ask, root)) == XIDS


@pytest.mark.parametrize(
    ("reads", "text"),
    [
        ([b"a\n", BrokenPipeError(), b"b\n", BlockingIOError()], "a\nb\n"),
        ([b"a\n", PermissionError()], None),
    ],
)
def test_the_buffer_of_a_running_kernel(
    root: Path, monkeypatch: pytest.MonkeyPatch, reads: list[bytes | OSError], text: str | None
) -> None:
    left = iter(reads)

    def read(_descriptor: int, _size: int) -> bytes:
        given = next(left)
        if isinstance(given, OSError):
            raise given
        return given

    path = write(root, "dev/kmsg")
    monkeypatch.setattr(readings.os, "read", read)
    assert readings.kernel_buffer(path) == text


def toolkit(root: Path, path: str, headers: str = "", version: str = "") -> None:
    write(root, f"{path}/bin/nvcc")
    if headers:
        write(root, f"{path}/include/cuda_runtime_api.h", f"/* */\n#define CUDART_VERSION  {headers}\n")
    if version:
        write(root, f"{path}/version.json", version)


def nvcc(root: Path, **versions: str) -> probes.Ask:
    """Each nvcc by its folder's name, without punctuation."""

    def ask(program: str, *_arguments: str) -> tuple[str, str]:
        name = re.sub(r"\W", "", Path(program).parent.parent.name)
        if not Path(program).is_relative_to(root) or name not in versions:
            raise FileNotFoundError
        return f"nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release {versions[name]}, V1\n", ""

    return ask


def test_toolkits_that_contradict_one_another(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit(root, "usr/local/cuda-12.4", "12040")
    toolkit(root, "usr/local/cuda-13.0", "13000")
    link(root, "usr/local/cuda", "cuda-12.4")
    toolkit(root, "opt/cuda", "12090")
    toolkit(root, "usr/lib/nvidia-cuda-toolkit")
    link(root, "usr/bin/nvcc", "/usr/lib/nvidia-cuda-toolkit/bin/nvcc")
    write(root, "usr/local/cuda-notes/readme")
    write(root, "etc/environment", 'PATH="/usr/bin:/usr/local/cuda-13.0/bin"\nCUDA_HOME=/usr/local/cuda/\n')
    write(
        root, "etc/profile.d/cuda.sh", "# CUDA_HOME=/a\nexport PATH=/usr/local/cuda/bin:$PATH # mine\nCUDA_PATH=$HOME\n"
    )
    write(
        root,
        "etc/ld.so.conf.d/cuda.conf",
        "/usr/local/cuda-12.4/targets/x86_64-linux/lib\ninclude x\n/opt/cuda/lib64\n",
    )
    monkeypatch.setenv("PATH", "relative:/nowhere:/usr/bin:/usr/local/cuda/bin")
    ask = nvcc(root, cuda124="12.4", cuda130="13.0", cuda="12.9", nvidiacudatoolkit="12.0")
    assert list(readings.cuda_trees(ask, root)) == [
        CudaTree(path="/opt/cuda", target="/opt/cuda", found=("folder", "ld.so.conf"), nvcc="12.9", headers="12.9"),
        CudaTree(
            path="/usr/lib/nvidia-cuda-toolkit",
            target="/usr/lib/nvidia-cuda-toolkit",
            found=("folder", "PATH", "profile"),
            nvcc="12.0",
        ),
        CudaTree(
            path="/usr/local/cuda",
            target="/usr/local/cuda-12.4",
            found=("folder", "CUDA_HOME", "profile"),
            nvcc="12.4",
            headers="12.4",
        ),
        CudaTree(
            path="/usr/local/cuda-12.4",
            target="/usr/local/cuda-12.4",
            found=("folder", "ld.so.conf"),
            nvcc="12.4",
            headers="12.4",
        ),
        CudaTree(
            path="/usr/local/cuda-13.0",
            target="/usr/local/cuda-13.0",
            found=("folder", "profile"),
            nvcc="13.0",
            headers="13.0",
        ),
    ]


@pytest.mark.parametrize(
    ("version", "nvcc_version"),
    [
        ('{"cuda": {"version": "13.0.2"}, "cuda_nvcc": {"name": "CUDA NVCC", "version": "13.0.88"}}', "13.0"),
        ('{"cuda_nvcc": {"version": "new"}}', ""),
        ('{"cuda_nvcc": [', ""),
        ("[]", ""),
        ("", ""),
    ],
)
def test_an_nvcc_that_does_not_run(root: Path, version: str, nvcc_version: str) -> None:
    toolkit(root, "usr/local/cuda", "13010", version)
    (tree,) = readings.cuda_trees(silent, root)
    assert (tree.nvcc, tree.headers) == (nvcc_version, "13.1")


def test_a_folder_of_that_name_without_a_toolkit(root: Path) -> None:
    write(root, "usr/local/cuda-13.0/lib64/libcudart.so")
    write(root, "etc/ld.so.conf.d/cuda.conf", "/usr/lib/cuda/lib64\n")
    assert list(readings.cuda_trees(silent, root)) == []


def test_the_library_that_the_linker_finds_first(root: Path) -> None:
    for folder, version in (("usr/local/nvidia/lib64", "580.1"), ("usr/lib/x86_64-linux-gnu", "570.2.3")):
        write(root, f"{folder}/libcuda.so.{version}")
        link(root, f"{folder}/libcuda.so.1", f"libcuda.so.{version}")
    assert readings.library(root) == "570.2.3"
    write(root, "etc/ld.so.conf.d/nvidia.conf", "# driver\n/usr/local/nvidia/lib64 # here\n")
    assert readings.library(root) == "580.1"
    (root / "usr/local/nvidia/lib64/libcuda.so.580.1").unlink()
    assert readings.library(root) == "570.2.3", "a link to nothing"


def test_the_library_for_forward_compatibility_is_not_the_drivers(root: Path) -> None:
    """nvidia-container-toolkit has the linker find it first where a container brings a newer one than the host."""
    for folder, version in (("usr/local/cuda-13.1/compat", "590.44.01"), ("usr/lib/x86_64-linux-gnu", "580.95.05")):
        write(root, f"{folder}/libcuda.so.{version}")
        link(root, f"{folder}/libcuda.so.1", f"libcuda.so.{version}")
    link(root, "usr/local/cuda", "cuda-13.1")
    link(root, "opt/links", "/usr/local/cuda/compat")
    write(root, "etc/ld.so.conf.d/00-compat-1234.conf", "/usr/local/cuda/compat\n/opt/links\n")
    assert readings.library(root) == "580.95.05"
