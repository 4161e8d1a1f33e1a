# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Field cases of a node through the whole chain: files and nvidia-smi's answers → read → judged.

Pieces that one room tests by itself are not repeated: C09's compiler and headers (test_toolkit_rules, test_fitness),
C11's bounded compilers (test_kernel_builds, test_modules), C18's pairs that time out (test_collectives).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import fitness, kernel_builds, node, readings, rules
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Hardware
from ansible_collections.inference.sglang.plugins.module_utils.releases import RELEASES
from test_gpus import text
from test_node import write
from test_rules import FIT, SETTINGS

RELEASE = RELEASES["0.5.12.post1"]

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder)\nGCC version: 13\n"
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Mon Jan  5 10:00:00 UTC 2026\nGCC version: 13\n"
)

# As lspci prints them for the four root ports.
ACS_ON = "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
ACS_OFF = "SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-"
PORTS = ("0000:00:01.1", "0000:20:01.1", "0000:40:01.1", "0000:60:01.1")
CARDS = tuple(f"0000:{bus:02x}:00.0" for bus in range(0x01, 0x100, 0x20))

Answers = Mapping[str, tuple[str, str]]
SMI: Answers = {
    "nvidia-smi -q -x": (
        text("eight_rtx_pro_6000_mig.xml").replace("<current_mig>Enabled", "<current_mig>Disabled"),
        "",
    ),
    "nvidia-smi topo -m": (text("eight_pcie_two_sockets.txt"), ""),
}


def configuration(acs: str) -> bytes:
    """A port's configuration space: the standard header, then one extended capability."""
    control = sum(1 << bit for bit, flag in enumerate(acs.split()) if flag.endswith("+"))
    return bytes(256) + struct.pack("<IHH", 1 << 16 | 0x0D, 0xFF, control) + bytes(64)


Machine = Callable[..., Hardware]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Writes what the kernel shows of eight RTX PRO 6000, two below each root port, and reads it."""

    def make(
        *,
        module: str = OPEN,
        library: str = "580.95.05",
        answers: Answers = SMI,
        command_line: str = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet iommu=pt",
        domain: str = "identity",
        acs: str = ACS_OFF,
        cards: int = 8,
    ) -> Hardware:
        devices = tmp_path / "sys/bus/pci/devices"
        devices.mkdir(parents=True)
        for number, address in enumerate(CARDS[:cards]):
            port = PORTS[number // 2]
            folder = tmp_path / f"sys/devices/pci{port[:7]}/{port}/{address}"
            for name, value in {"vendor": "0x10de", "class": "0x030200", "device": "0x2bb5", "numa_node": "0"}.items():
                write(folder / name, value + "\n")
            write(tmp_path / f"sys/kernel/iommu_groups/{number}/type", domain + "\n")
            (folder / "iommu_group").symlink_to(f"../../../../kernel/iommu_groups/{number}")
            (folder.parent / "config").write_bytes(configuration(acs))
            (devices / address).symlink_to(os.path.relpath(folder, devices))
            if not (devices / port).is_symlink():
                (devices / port).symlink_to(os.path.relpath(folder.parent, devices))
        write(tmp_path / "sys/class/iommu/ivhd0/name")
        write(tmp_path / "proc/cmdline", command_line + "\n")
        write(tmp_path / "proc/sys/kernel/osrelease", "6.8.0-90-generic\n")
        if module:
            write(tmp_path / "proc/driver/nvidia/version", module)
        if library:
            folder = tmp_path / "usr/lib/x86_64-linux-gnu"
            write(folder / f"libcuda.so.{library}")
            (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{library}")

        def ask(program: str, *arguments: str) -> tuple[str, str]:
            called = " ".join([program, *arguments])
            if called in answers:
                return answers[called]
            if program == "nvidia-smi" and any(known.startswith(program) for known in answers):
                return "", f"{called} ended with status 1"
            raise FileNotFoundError(program)

        return readings.read(ask, tmp_path)

    return make


def judged(hardware: Hardware, **use: Any) -> list[Finding]:
    return fitness.judge(hardware, cuda=RELEASE.cuda, **use)


def errors(hardware: Hardware, **use: Any) -> list[str]:
    return [finding.id for finding in judged(hardware, **use) if finding.severity == "error"]


def failing(complaint: str) -> Answers:
    return {"nvidia-smi -q -x": ("", f"nvidia-smi -q -x ended with status 18: {complaint}")}


# C03: Start9Labs/start-technologies#3465.


@pytest.mark.parametrize("answers", [SMI, failing("No devices were found"), {}], ids=["answers", "fails", "missing"])
def test_c03_the_proprietary_module_is_named_and_not_no_gpus(machine: Machine, answers: Answers) -> None:
    found = [finding for finding in judged(machine(module=PROPRIETARY, answers=answers)) if finding.severity == "error"]
    assert [finding.seen for finding in found] == [
        "Blackwell needs the open kernel module; loaded: proprietary 580.95.05"
    ]
    assert "open" in found[0].remedy


def test_c03_the_open_module_passes(machine: Machine) -> None:
    assert errors(machine()) == []


def test_c03_a_node_without_a_card_is_told_so(machine: Machine) -> None:
    assert judged(machine(module=PROPRIETARY, cards=0, answers={})) == []
    (finding,) = rules.judge(SETTINGS, replace(FIT, gpus=(), driver=""), RELEASE)
    assert finding.seen == "The node has no NVIDIA GPU on its PCI bus"


# C04: pando85/homelab#4110.

NVML = "Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.105"


@pytest.mark.parametrize("library", ["580.105.08", ""], ids=["installed", "told by NVML"])
def test_c04_a_replaced_library_needs_a_reboot(machine: Machine, library: str) -> None:
    (finding,) = (one for one in judged(machine(library=library, answers=failing(NVML))) if one.severity == "error")
    assert finding.id == "driver.mismatch"
    for words in ("580.95.05", "580.105", "reboot required"):
        assert words in finding.seen


def test_c04_packages_that_are_not_held(machine: Machine, tmp_path: Path) -> None:
    stanza = "Package: {}\nStatus: {} ok installed\nVersion: 580.95.05-0ubuntu1\n\n"
    held = stanza.format("nvidia-driver-580-open", "hold")
    status = tmp_path / "var/lib/dpkg/status"
    write(status, held + stanza.format("libnvidia-compute-580", "install"))
    hardware = machine()
    (finding,) = (one for one in judged(hardware) if one.id == "driver.unheld")
    assert "apt-mark hold libnvidia-compute-580;" in finding.remedy
    assert finding.severity == "warning"
    write(status, held)
    packages, holds = readings.installed_packages(tmp_path)
    later = replace(hardware, driver=replace(hardware.driver, packages=packages, held=holds))
    assert "driver.unheld" not in [one.id for one in judged(later)]


# C05: linux-surface/linux-surface#906.


@pytest.mark.parametrize("on", [True, False], ids=["Secure Boot", "without"])
def test_c05_a_key_that_is_not_enrolled_and_headers_that_are_missing(
    machine: Machine, tmp_path: Path, on: bool
) -> None:
    for kernel in ("6.8.0-90-generic", "6.8.0-101-generic"):
        (tmp_path / f"lib/modules/{kernel}/kernel").mkdir(parents=True)
    write(tmp_path / "lib/modules/6.8.0-90-generic/build/Makefile")
    key = write(tmp_path / "var/lib/shim-signed/mok/MOK.der")
    answers = {
        "mokutil --sb-state": (f"SecureBoot {'enabled' if on else 'disabled'}\n", ""),
        f"mokutil --test-key {key}": ("", f"mokutil ended with status 1: {key} is not enrolled"),
    }
    found = judged(machine(module="", library="", answers=answers))
    stops = [finding.seen for finding in found if finding.severity == "error"]
    assert [seen.partition(":")[0] for seen in stops] == (["Secure Boot on, DKMS key not enrolled"] if on else [])
    (headers,) = (finding for finding in found if finding.id == "kernel.headers")
    assert headers.severity == "warning"
    assert headers.seen.startswith("Kernel 6.8.0-101-generic has no NVIDIA module and no headers")
    assert headers.seen.endswith("the next reboot would lose the driver")


# C07: odysseus-dev/odysseus#6257.


def test_c07_headers_of_another_python_and_no_libnuma(tmp_path: Path) -> None:
    write(tmp_path / "usr/include/python3.10/Python.h")
    interpreter = write(tmp_path / "python3.12", "#!/bin/sh\necho /usr/include/python3.12\n")
    interpreter.chmod(0o755)
    assert node.python_headers(str(interpreter), tmp_path) is False
    facts = replace(
        FIT,
        distribution="ubuntu",
        distribution_version="22.04",
        python="3.12",
        python_headers=node.python_headers(str(interpreter), tmp_path),
        numa_library=False,
    )
    settings = replace(SETTINGS, packages=("gcc", "python3.10-dev"))
    found = [finding for finding in rules.judge(settings, facts, RELEASE) if finding.severity == "error"]
    assert [finding.remedy for finding in found] == ["Add python3.12-dev to uv_packages", "Add libnuma1 to uv_packages"]


def test_c07_a_python_that_brings_its_headers_needs_no_package(tmp_path: Path) -> None:
    home = "/opt/uv/python/cpython-3.12-linux-x86_64-gnu/include/python3.12"
    write(tmp_path / home.lstrip("/") / "Python.h")
    interpreter = write(tmp_path / "python3.12", f"#!/bin/sh\necho {home}\n")
    interpreter.chmod(0o755)
    facts = replace(FIT, python="3.12", python_headers=node.python_headers(str(interpreter), tmp_path))
    assert [finding.id for finding in rules.judge(SETTINGS, facts, RELEASE)] == []


# C09: flashinfer-ai/flashinfer#3675.


def toolkits(root: Path, **versions: str) -> Answers:
    """nvcc of these folders below /usr/local, by its version; cuda leads to 12.8."""
    answers = {}
    for folder, version in versions.items():
        name = folder.replace("_", ".").replace("cuda", "cuda-")
        home = root / "usr/local" / name
        nvcc = write(home / "bin/nvcc")
        major, minor = version.split(".")
        write(home / "include/cuda_runtime_api.h", f"#define CUDART_VERSION  {int(major) * 1000 + int(minor) * 10}\n")
        answers[f"{nvcc} --version"] = (f"Cuda compilation tools, release {version}, V{version}.93\n", "")
    (root / "usr/local/cuda").symlink_to("cuda-12.8")
    return {**SMI, **answers}


def test_c09_the_link_to_an_old_toolkit_matters_only_to_who_uses_it(machine: Machine, tmp_path: Path) -> None:
    hardware = machine(answers=toolkits(tmp_path, cuda12_8="12.8", cuda13_0="13.0"))
    (finding,) = (one for one in judged(hardware, toolkit="/usr/local/cuda") if one.severity == "error")
    for words in ("/usr/local/cuda-12.8", "nvcc 12.8", "13.0", "SM120 need >= 12.9"):
        assert words in finding.seen
    for toolkit in ("/usr/local/cuda-13.0", ""):
        assert errors(hardware, toolkit=toolkit) == []


# C11: flashinfer-ai/flashinfer#3634.


@pytest.mark.parametrize(("available", "jobs"), [(122880 << 20, 13), (15000 << 20, 1)])
def test_c11_compilers_beside_an_engine(available: int, jobs: int) -> None:
    assert kernel_builds.engine_jobs(64, available) == jobs


def test_c11_the_user_wins() -> None:
    given = kernel_builds.environment({"MAX_JOBS": 3}, 64, f"MemAvailable: {122880 << 10} kB\n")
    assert "MAX_JOBS" not in given


# C18: local-inference-lab/rtx6kpro#15.

QUIET = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet"


def test_c18_iommu_and_acs_stop_a_node_with_both_remedies(machine: Machine) -> None:
    hardware = machine(command_line=QUIET, domain="DMA-FQ", acs=ACS_ON)
    found = {finding.id: finding for finding in judged(hardware) if finding.severity == "error"}
    assert list(found) == ["pcie.iommu", "pcie.acs"]
    assert "iommu=pt is missing" in found["pcie.iommu"].seen
    assert "iommu=pt" in found["pcie.iommu"].remedy
    for port in PORTS:
        assert port in found["pcie.acs"].seen
        assert f"setpci -s {port} ECAP_ACS+6.w=0000" in found["pcie.acs"].remedy
    for finding in found.values():
        assert "NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce" in finding.remedy


def test_c18_the_fallback_goes_on(machine: Machine) -> None:
    hardware = machine(command_line=QUIET, domain="DMA-FQ", acs=ACS_ON)
    assert errors(hardware, p2p_fallback=True) == []
    assert {"pcie.iommu", "pcie.acs"} <= {finding.id for finding in judged(hardware, p2p_fallback=True)}


def test_c18_passthrough_without_redirection_passes(machine: Machine) -> None:
    assert not any(finding.id.startswith("pcie.") for finding in judged(machine()))


# C19: sgl-project/sgl-project.github.io#5.


@pytest.mark.parametrize("container", [True, False], ids=["container", "host"])
def test_c19_small_and_full_shared_memory(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, container: bool
) -> None:
    real = os.statvfs

    def statvfs(path: Any) -> Any:
        full = SimpleNamespace(f_blocks=64, f_bavail=4, f_frsize=1 << 20)
        return full if str(path).endswith("dev/shm") else real(path)

    monkeypatch.setattr(readings.os, "statvfs", statvfs)
    if container:
        write(tmp_path / "run/systemd/container", "podman\n")
    (finding,) = (one for one in judged(machine()) if one.severity == "error")
    assert finding.id == "memory.shm"
    assert "size 64 MiB, free 4 MiB; 8 GPUs need 8192 MiB" in finding.seen
    assert ("--shm-size=8g" in finding.remedy) == container
