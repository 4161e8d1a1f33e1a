# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Each rule by a fit node and the smallest change that makes it unfit; whole nodes as they were recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import fitness, node, rules
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.gpus import Process
from ansible_collections.inference.sglang.plugins.module_utils.hardware import (
    UNLIMITED,
    Bridge,
    CudaTree,
    Driver,
    GpuState,
    Hardware,
    Kernel,
    Memory,
    Xid,
)
from ansible_collections.inference.sglang.plugins.module_utils.releases import RELEASES
from test_rules import SETTINGS

NODES = Path(__file__).parent / "data" / "nodes"
GIB = 1 << 30
SPINNING = {"utilization": 100, "pcie_generation": 5}

Change = Callable[[Hardware], Hardware]


def recorded(name: str) -> Hardware:
    return Hardware.from_dict(json.loads((NODES / f"{name}.json").read_text(encoding="utf-8"))["hardware"])


BOX = recorded("eight_rtx_pro_6000")
HGX = recorded("eight_b200")
# On one socket: the box of two is told so.
FIT = replace(BOX, gpus=tuple(replace(gpu, numa=0) for gpu in BOX.gpus))
PAIRS = tuple(FIT.peers)
REDIRECT = Bridge(address="0000:20:01.1", acs=("SrcValid", "ReqRedir", "CmpltRedir"))
FOUND = ("folder", "PATH")
OLD_TREE = CudaTree(path="/usr/local/cuda", target="/usr/local/cuda-12.8", found=FOUND, nvcc="12.8", headers="12.8")
TREE = CudaTree(path="/usr/local/cuda-13.0", target="/usr/local/cuda-13.0", nvcc="13.0", headers="13.0")
STRANGER = Process(7, "python3", 9 << 30, "", "/user.slice/session-1.scope")


def driver(**changes: Any) -> Change:
    return lambda fit: replace(fit, driver=replace(fit.driver, **changes))


def kernel(**changes: Any) -> Change:
    return lambda fit: replace(fit, kernel=replace(fit.kernel, **changes))


def memory(**changes: Any) -> Change:
    return lambda fit: replace(fit, memory=replace(fit.memory, **changes))


def gpu(*numbers: int, **changes: Any) -> Change:
    """Changes to some GPUs; to all of them for no numbers."""
    return lambda fit: replace(
        fit, gpus=tuple(replace(one, **changes) if not numbers or one.index in numbers else one for one in fit.gpus)
    )


def node_of(**changes: Any) -> Change:
    return lambda fit: replace(fit, **changes)


def together(*changes: Change) -> Change:
    def changed(fit: Hardware) -> Hardware:
        for change in changes:
            fit = change(fit)
        return fit

    return changed


def judged(hardware: Hardware, **use: Any) -> list[Finding]:
    return fitness.judge(hardware, **{"cuda": "13.0", **use})


def told(hardware: Hardware, **use: Any) -> list[tuple[str, str]]:
    return [(finding.id, finding.severity) for finding in judged(hardware, **use)]


PROPRIETARY = driver(flavour="proprietary")
TWO_KERNELS = {"6.8.0-90-generic": True, "6.8.0-101-generic": False}
NO_MODULE = {"6.8.0-90-generic": False}

UNFIT: tuple[tuple[str, str, Hardware, Change], ...] = (
    ("driver.proprietary", "error", FIT, PROPRIETARY),
    # What follows from the wrong module or library is not told beside it.
    ("driver.proprietary", "error", FIT, together(PROPRIETARY, gpu(index=None), node_of(links={}, peers={}))),
    ("driver.proprietary", "error", FIT, together(PROPRIETARY, driver(complaint="No devices were found"))),
    ("driver.mismatch", "error", FIT, driver(library="580.105.08")),
    (
        "driver.mismatch",
        "error",
        FIT,
        driver(library="", complaint="Driver/library version mismatch\nNVML library version: 580.105"),
    ),
    ("driver.complaint", "error", FIT, driver(complaint="did not answer within 60 s")),
    ("cards.unlisted", "error", FIT, gpu(5, index=None)),
    ("cards.unlisted", "error", FIT, gpu(index=None)),
    # Two of eight are given to a container; the others are nobody's fault, whatever their machine says of them.
    (
        "cards.withheld",
        "info",
        node_of(kernel=Kernel(container="docker"), links={(0, 1): "PIX"}, peers={(0, 1): ("OK", "OK")})(FIT),
        together(
            gpu(2, 3, 4, 5, 6, index=None, product="", pcie_width=8),
            gpu(7, index=None, bound_to="vfio-pci", numa=1),
            memory(shm_size=2 * GIB, shm_free=2 * GIB),
            node_of(xids=(Xid(address=FIT.gpus[5].address, code=79, times=1, message=""),)),
        ),
    ),
    ("cards.bound", "error", FIT, together(driver(version=""), gpu(index=None, bound_to="nouveau"))),
    ("cards.bound", "error", FIT, gpu(index=None, bound_to="vfio-pci")),
    ("cards.bound", "warning", FIT, gpu(5, 6, index=None, bound_to="vfio-pci")),
    ("driver.old", "error", FIT, driver(version="575.57.08", library="575.57.08")),
    ("driver.denied", "warning", FIT, driver(version="595.84", library="595.84")),
    ("driver.denied", "warning", HGX, driver(version="580.105.08", library="580.105.08")),
    ("driver.denied", "warning", HGX, driver(version="580.95.05", library="580.95.05")),
    ("driver.unheld", "warning", FIT, driver(held=tuple(FIT.driver.held[:3]))),
    (
        "driver.secure_boot",
        "error",
        FIT,
        driver(version="", library="", secure_boot=True, key_enrolled=False),
    ),
    ("kernel.headers", "warning", FIT, driver(kernels=TWO_KERNELS, headers={"6.8.0-101-generic": False})),
    ("kernel.headers", "warning", FIT, driver(kernels=NO_MODULE, headers={"6.8.0-90-generic": False})),
    ("kernel.module", "warning", FIT, driver(kernels=TWO_KERNELS, headers={"6.8.0-101-generic": True})),
    ("driver.persistence", "warning", FIT, together(driver(persistenced=False), gpu(2, persistence=False))),
    # Ubuntu's unit: the daemon runs, and keeps no GPU.
    ("driver.persistence", "warning", FIT, gpu(persistence=False)),
    ("driver.persistence", "warning", FIT, together(driver(persistenced=None), gpu(persistence=False))),
    ("cards.mixed", "warning", FIT, gpu(7, product="NVIDIA L40S")),
    ("cards.mig", "warning", FIT, gpu(3, mig=True)),
    ("cards.ecc", "warning", FIT, gpu(3, ecc=False)),
    ("cards.power", "info", FIT, gpu(power_limit=450.0)),
    ("cards.power", "warning", FIT, gpu(1, power_limit=450.0)),
    ("cards.busy", "error", FIT, gpu(4, **SPINNING)),
    ("cards.busy", "warning", FIT, together(gpu(4, **SPINNING), kernel(container="podman"))),
    ("cards.held", "warning", FIT, gpu(4, processes=(STRANGER,))),
    ("pcie.iommu", "error", FIT, gpu(iommu_type="DMA-FQ")),
    ("pcie.iommu", "error", FIT, together(gpu(iommu_type=""), kernel(iommu="translated"))),
    ("pcie.acs", "error", FIT, gpu(0, 1, bridges=(REDIRECT,))),
    ("pcie.acs", "error", FIT, together(gpu(0, 1, bridges=(REDIRECT,)), node_of(links={}, peers={}))),
    ("pcie.peers", "warning", FIT, node_of(peers={**FIT.peers, (0, 1): ("CNS", "OK")})),
    ("pcie.width", "warning", FIT, gpu(6, pcie_width=8)),
    ("pcie.generation", "warning", FIT, gpu(6, utilization=60, pcie_generation=3)),
    ("nvlink.down", "warning", HGX, gpu(6, nvlinks=(17, 18))),
    ("fabric.state", "error", HGX, gpu(fabric=("In Progress", "N/A"))),
    ("fabric.state", "error", HGX, gpu(0, fabric=("Completed", "Insufficient Resources"))),
    ("numa.split", "info", FIT, gpu(4, 5, numa=1)),
    ("xid.reported", "info", FIT, node_of(xids=(Xid(address="0000:01:00.0", code=31, times=2, message="MMU Fault"),))),
    ("xid.reported", "warning", FIT, node_of(xids=(Xid(address="0000:01:00.0", code=119, times=1, message=""),))),
    ("memory.shm", "error", FIT, together(memory(shm_size=64 << 20), kernel(container="podman"))),
    ("memory.shm", "error", FIT, memory(shm_size=64 << 20, shm_free=4 << 20)),
    # NVIDIA's example for a container; more than nobody's choice.
    ("memory.shm", "warning", FIT, together(memory(shm_size=GIB, shm_free=GIB), kernel(container="docker"))),
    ("memory.shm", "warning", FIT, memory(shm_size=8 * GIB, shm_free=128 << 20)),
    ("memory.shm", "warning", FIT, memory(shm_free=6 * GIB)),
    ("memory.memlock", "warning", FIT, together(memory(memlock=64 << 10), kernel(container="docker"))),
    ("cuda.others", "info", FIT, node_of(cuda_trees=(OLD_TREE,))),
)


@pytest.mark.parametrize("fit", [FIT, HGX, node_of(kernel=Kernel(container="podman"))(FIT)])
def test_a_fit_node_has_no_finding(fit: Hardware) -> None:
    assert told(fit) == []


@pytest.mark.parametrize(("id_", "severity", "fit", "change"), UNFIT)
def test_one_change_one_finding(id_: str, severity: str, fit: Hardware, change: Change) -> None:
    assert told(change(fit)) == [(id_, severity)]


@pytest.mark.parametrize(("id_", "severity", "fit", "change"), UNFIT)
def test_a_finding_says_what_was_seen_and_what_to_do(id_: str, severity: str, fit: Hardware, change: Change) -> None:
    (finding,) = judged(change(fit))
    assert finding.source
    assert "None" not in finding.seen
    assert not finding.seen.endswith(".")
    assert not finding.remedy.endswith(".")


@pytest.mark.parametrize("rule", fitness.RULES, ids=lambda rule: rule.__name__)
def test_every_rule_has_its_finding(rule: fitness.Rule) -> None:
    toolkits = ("", "/usr/local/cuda")
    uses = [fitness.Use(cuda="13.0", toolkit=toolkit) for toolkit in toolkits]
    cases = [change(fit) for _id, _severity, fit, change in UNFIT]
    assert any([*rule(case, use)] for case in cases for use in uses)


BLANK = Hardware(gpus=(GpuState(address="0000:01:00.0"), GpuState(address="0000:21:00.0")))


def test_what_is_not_known_is_not_judged() -> None:
    """No driver, no nvidia-smi, no root: only the addresses of the cards are known."""
    assert told(BLANK) == []
    assert told(BLANK, toolkit="/usr/local/cuda", p2p_fallback=True) == []


@pytest.mark.parametrize("name", [part.name for part in fields(Hardware) if part.name != "gpus"])
@pytest.mark.parametrize(("id_", "fit", "change"), [(id_, fit, change) for id_, _severity, fit, change in UNFIT])
def test_a_part_that_is_not_known_adds_no_finding(id_: str, fit: Hardware, change: Change, name: str) -> None:
    changed = change(fit)
    # Whether it is a container is always known.
    unknown = replace(Hardware(), kernel=Kernel(container=changed.kernel.container))
    found = judged(replace(changed, **{name: getattr(unknown, name)}))
    assert {finding.id for finding in found} <= {id_}


@pytest.mark.parametrize("name", [part.name for part in fields(GpuState) if part.name not in ("address", "index")])
def test_a_card_of_which_one_thing_is_not_known_is_fit(name: str) -> None:
    default = getattr(GpuState(address=""), name)
    assert told(gpu(**{name: default})(FIT)) == []
    assert told(gpu(**{name: default})(HGX)) == []


def test_a_node_without_gpus_is_judged_elsewhere() -> None:
    assert told(replace(FIT, gpus=(), driver=Driver(secure_boot=True, key_enrolled=False))) == []


@pytest.mark.parametrize(
    ("fit", "change"),
    [
        (FIT, driver(library="580.95")),
        (FIT, gpu(bound_to="nvidia")),
        (FIT, driver(packages={"nvidia-utils-580": "1"}, held=("nvidia-utils-580", "else"))),
        # What the engine uses nothing of.
        (FIT, driver(packages={"nvidia-container-toolkit": "1", "libnvidia-container1": "1", "cuda-keyring": "1.1-1"})),
        (FIT, driver(packages={"datacenter-gpu-manager-4-core": "1", "nsight-compute-2025.3.1": "1"})),
        # Hopper and older cards run with either module.
        (FIT, together(PROPRIETARY, gpu(architecture="ada", product="NVIDIA L40S"))),
        (HGX, driver(version="580.126.20")),
        (FIT, driver(version="580.105.08", library="580.105.08")),
        (FIT, driver(version="595.58.03", library="595.58.03")),
        (FIT, driver(version="595.84.01", library="595.84.01")),
        (FIT, driver(secure_boot=True, key_enrolled=False)),
        (FIT, driver(version="", library="", secure_boot=True, key_enrolled=True)),
        (FIT, driver(version="", library="", secure_boot=True)),
        (FIT, driver(version="", library="", secure_boot=False, key_enrolled=False)),
        (
            FIT,
            driver(
                version="",
                secure_boot=True,
                key_enrolled=False,
                packages={"linux-modules-nvidia-580-server-open-generic": "1"},
                held=("linux-modules-nvidia-580-server-open-generic",),
            ),
        ),
        (FIT, driver(version="", library="", complaint="nvidia-smi: not found")),
        (FIT, driver(kernels={"6.8.0-101-generic": True}, headers={"6.8.0-101-generic": False})),
        (FIT, driver(kernels={**TWO_KERNELS, "6.8.0-110-generic": True}, headers={})),
        # A driver that is to be installed yet, for which all is there.
        (FIT, driver(kernels=NO_MODULE, headers={"6.8.0-90-generic": True})),
        (FIT, together(driver(kernels=TWO_KERNELS, headers={}), kernel(container="podman"))),
        (FIT, together(driver(persistenced=None), gpu(persistence=True))),
        (FIT, together(driver(persistenced=False), gpu(persistence=True))),
        (FIT, gpu(ecc=False)),
        (FIT, gpu(power_limit=600.0, power_default=500.0)),
        (FIT, gpu(4, **SPINNING, processes=(Process(7, "sglang", 1, "sglang-kimi.service"),))),
        (FIT, gpu(processes=(Process(7, "sglang::scheduler", 1 << 30, "sglang-kimi.service"),))),
        # One GPU has nobody to reach.
        (replace(FIT, gpus=FIT.gpus[:1], links={}, peers={}), gpu(iommu_type="DMA", bridges=(REDIRECT,))),
        # Over NVLink nothing passes the root complex.
        (HGX, together(gpu(bridges=(REDIRECT,)), kernel(iommu="translated"))),
        (HGX, together(gpu(bridges=(REDIRECT,)), node_of(links={}, peers={}))),
        (FIT, gpu(bridges=(Bridge(address="0000:20:01.1", acs=("SrcValid",)),))),
        (FIT, gpu(bridges=(Bridge(address="0000:20:01.1", acs=None),))),
        (FIT, together(gpu(iommu_type="identity"), kernel(iommu="translated"))),
        (FIT, gpu(utilization=9, pcie_generation=1)),
        # Given work a moment ago.
        (FIT, gpu(utilization=40, pcie_generation=1)),
        (FIT, gpu(pcie_width_max=8, pcie_width=8)),
        # A card for bridges, without one.
        (FIT, gpu(nvlinks=(0, 12))),
        (FIT, gpu(nvlinks=(0, 0), fabric=("N/A", "N/A"))),
        (FIT, gpu(fabric=("Not Supported", "Not Supported"))),
        (FIT, gpu(numa=-1)),
        (FIT, node_of(xids=None)),
        (FIT, node_of(xids=(Xid(address="0000:01:00.0", code=16, times=9, message="display"),))),
        (FIT, memory(shm_size=8 * GIB, shm_free=8 * GIB)),
        # One rank has nobody to share with.
        (
            replace(FIT, gpus=FIT.gpus[:1], links={}, peers={}),
            together(memory(shm_size=64 << 20, shm_free=1 << 20), kernel(container="docker")),
        ),
        (FIT, memory(memlock=64 << 10)),
        (FIT, together(memory(memlock=UNLIMITED), kernel(container="podman"))),
        (FIT, node_of(cuda_trees=(TREE, CudaTree(path="/opt/cuda", target="/opt/cuda", found=FOUND)))),
        # Lies there, and nothing finds it.
        (FIT, node_of(cuda_trees=(replace(OLD_TREE, found=("folder",)),))),
    ],
)
def test_what_is_fit_all_the_same(fit: Hardware, change: Change) -> None:
    assert told(change(fit)) == []


# What the words of some findings must hold.


def seen(hardware: Hardware, **use: Any) -> str:
    (finding,) = judged(hardware, **use)
    return finding.seen


def test_versions_are_compared_as_numbers() -> None:
    newest = {"6.8.0-9-generic": True, "6.8.0-10-generic": False}
    assert "6.8.0-10-generic" in seen(driver(kernels=newest, headers={})(kernel(release="6.8.0-9-generic")(FIT)))
    assert told(driver(version="1000.1", library="1000.1")(FIT)) == []


@pytest.mark.parametrize(("major", "least"), [("13.0", 580), ("13.4", 580), ("12.8", 525)])
def test_the_driver_for_a_cuda(major: str, least: int) -> None:
    def finding(branch: int) -> list[str]:
        version = f"{branch}.10.01"
        changed = driver(version=version, library=version)(FIT)
        return [id_ for id_, _severity in told(changed, cuda=major)]

    assert finding(least - 1) == ["driver.old"]
    assert finding(least) == []


def test_a_cuda_that_is_in_no_table_is_not_judged() -> None:
    assert told(driver(version="1.0", library="1.0")(FIT), cuda="14.0") == []


def test_no_build_is_denied_that_this_collection_installs() -> None:
    for entry in fitness.DENIED:
        assert entry.source.count("#") == 1
        assert entry.first <= entry.last
    for box in (FIT, HGX):
        assert told(box) == []


def test_of_many_packages_a_few_are_named() -> None:
    names = {f"libnvidia-part{number:02}-580": "1" for number in range(60)}
    (finding,) = judged(driver(packages=names)(FIT))
    assert "may be upgraded at any time (60): libnvidia-part00-580, " in finding.seen
    assert finding.seen.endswith("libnvidia-part03-580 and 56 more")
    assert "libnvidia-part04-580" not in str(finding)
    assert (
        "apt-mark hold libnvidia-part00-580 libnvidia-part01-580 libnvidia-part02-580 libnvidia-part03-580, and so on"
        in (finding.remedy)
    )


def serving(unit: str) -> Change:
    """All cards at work, each with the rank of a service."""
    ranks = {index: Process(900 + index, "sglang::scheduler", 80 * GIB, unit) for index in range(8)}
    return lambda fit: replace(
        fit,
        gpus=tuple(
            replace(one, utilization=100, pcie_generation=5, power_draw=400.0, processes=(ranks[one.index or 0],))
            for one in fit.gpus
        ),
    )


@pytest.mark.parametrize("unit", ["sglang-kimi.service", "sglang-another.service"])
def test_a_second_run_on_a_serving_node_is_as_quiet_as_the_first(unit: str) -> None:
    assert told(serving(unit)(FIT)) == []
    assert told(serving("docker.service")(FIT)) == [("cards.held", "warning")]


# What is wrong with GPUs that the instance does not use.


@pytest.mark.parametrize(
    ("fit", "change"),
    [
        (FIT, gpu(7, product="NVIDIA L40S")),
        (FIT, gpu(7, mig=True)),
        (FIT, gpu(7, ecc=False)),
        (FIT, gpu(7, power_limit=450.0)),
        (FIT, gpu(7, **SPINNING)),
        (FIT, gpu(7, processes=(STRANGER,))),
        (FIT, gpu(7, pcie_width=8)),
        (FIT, gpu(7, utilization=60, pcie_generation=3)),
        (FIT, gpu(7, numa=1)),
        (FIT, node_of(peers={**FIT.peers, (0, 7): ("CNS", "CNS")})),
        (HGX, gpu(7, nvlinks=(17, 18))),
    ],
)
def test_other_gpus_are_no_concern_of_an_instance(fit: Hardware, change: Change) -> None:
    assert told(change(fit), gpus=(0, 1, 2, 3)) == []
    assert told(change(fit), gpus=(0, 7)) != []


def test_shared_memory_is_for_the_ranks_of_the_instance() -> None:
    half = memory(shm_free=4 * GIB)(FIT)
    assert told(half, gpus=(0, 1, 2, 3)) == []
    assert told(half) == [("memory.shm", "warning")]


def test_one_gpu_of_eight_has_nobody_to_reach() -> None:
    bad = gpu(iommu_type="DMA", bridges=(REDIRECT,))(FIT)
    assert told(bad, gpus=(3,)) == []
    assert told(bad, gpus=(2, 3)) == [("pcie.iommu", "error"), ("pcie.acs", "error")]
    assert "between 2 GPUs" in judged(bad, gpus=(2, 3))[0].seen


def test_what_the_whole_node_has_is_told_for_any_gpus() -> None:
    assert told(PROPRIETARY(FIT), gpus=(0,)) == [("driver.proprietary", "error")]
    assert ("cards.unlisted", "error") in told(gpu(7, index=None)(FIT), gpus=(0, 1))


def test_in_a_container_that_knows_no_gpu_all_of_them_are_judged() -> None:
    none = together(gpu(index=None), kernel(container="docker"))(FIT)
    assert told(none) == [("cards.unlisted", "error")]


@pytest.mark.parametrize(
    ("fit", "change"),
    [
        (FIT, PROPRIETARY),
        (FIT, driver(library="580.105.08")),
        (FIT, driver(complaint="did not answer within 60 s")),
        (FIT, gpu(index=None)),
        (FIT, gpu(index=None, bound_to="vfio-pci")),
        (FIT, gpu(index=None, bound_to="nouveau")),
        (FIT, driver(version="575.57.08", library="575.57.08")),
        (FIT, gpu(persistence=False)),
        (FIT, gpu(iommu_type="DMA-FQ")),
        (FIT, gpu(bridges=(REDIRECT,))),
        (HGX, gpu(fabric=("In Progress", "N/A"))),
    ],
)
def test_in_a_container_a_remedy_says_where_it_is_to_be_applied(fit: Hardware, change: Change) -> None:
    (finding,) = judged(together(change, kernel(container="docker"))(fit))
    assert finding.remedy.startswith("On the machine that this container is on: ")
    assert not judged(change(fit))[0].remedy.startswith("On the machine")


def test_a_number_that_no_gpu_has_leaves_all_of_them() -> None:
    assert told(gpu(3, mig=True)(FIT), gpus=(0, 11)) == [("cards.mig", "warning")]


def test_the_peers_are_explained() -> None:
    peers = dict.fromkeys(PAIRS, ("CNS", "CNS"))
    refused = node_of(peers=peers)(FIT)
    assert "CNS (the chipset does not support it) for all pairs" in seen(refused)
    # NCCL then does not try, so that nothing hangs.
    assert told(gpu(iommu_type="DMA", bridges=(REDIRECT,))(refused)) == [("pcie.peers", "warning")]
    some = gpu(iommu_type="DMA")(node_of(peers={**peers, (2, 3): ("OK", "OK")})(FIT))
    assert ("pcie.iommu", "error") in told(some)
    odd = node_of(peers={**FIT.peers, (0, 1): ("OK", "XX"), (0, 2): ("NS", ""), (0, 3): ("", "")})(FIT)
    assert [finding.seen[-40:] for finding in judged(odd)] == [
        "X (nvidia-smi does not explain it) for 0-1"[-40:],
        "S (it is not supported between them) for 0-2"[-40:],
    ]


def test_the_fallback_turns_hangs_into_warnings() -> None:
    bad = gpu(iommu_type="DMA", bridges=(REDIRECT,))(FIT)
    assert told(bad) == [("pcie.iommu", "error"), ("pcie.acs", "error")]
    assert told(bad, p2p_fallback=True) == [("pcie.iommu", "warning"), ("pcie.acs", "warning")]
    assert all("sglang_server_p2p_fallback: true" in finding.remedy for finding in judged(bad))
    assert not any("p2p_fallback" in finding.remedy for finding in judged(bad, p2p_fallback=True))
    assert told(node_of(peers=dict.fromkeys(PAIRS, ("NS", "NS")))(FIT), p2p_fallback=True) == [("pcie.peers", "info")]


def test_what_a_container_cannot_mend_is_told_so() -> None:
    inside = kernel(container="lxc")(gpu(iommu_type="DMA", bridges=(REDIRECT,))(FIT))
    assert all(finding.remedy.startswith("On the machine") for finding in judged(inside))
    small = memory(shm_size=64 << 20, shm_free=64 << 20)(kernel(container="docker")(FIT))
    assert "--shm-size=8g" in judged(small)[0].remedy


def test_links_that_are_all_down_are_told_where_there_is_a_fabric() -> None:
    assert told(gpu(nvlinks=(0, 18))(HGX)) == [("nvlink.down", "warning")]
    # Nothing is left but PCIe, as far as anybody knows.
    unlinked = gpu(nvlinks=(0, 18))(node_of(links={}, peers={})(HGX))
    assert ("pcie.iommu", "error") in told(unlinked)


def test_an_xid_of_a_lost_card_is_an_error() -> None:
    lost = Xid(address="0000:41:00.0", code=79, times=1, message="GPU has fallen off the bus.")
    hardware = node_of(xids=(lost, replace(lost, code=31), replace(lost, address="0000:01:00.0", code=48)))(
        gpu(2, index=None)(FIT)
    )
    assert [severity for id_, severity in told(hardware) if id_ == "xid.reported"] == ["error", "info", "warning"]


def test_the_same_xid_of_several_gpus_is_one_finding() -> None:
    addresses = [card.address for card in FIT.gpus]
    ended = tuple(Xid(address=address, code=45, times=2, message="Ch 00000008") for address in addresses)
    (finding,) = judged(node_of(xids=ended)(FIT))
    assert finding.severity == "info"
    assert finding.seen.startswith(f"Xid 45 on {', '.join(addresses)}, 16 times since the boot: ")


@pytest.mark.parametrize(
    ("message", "severity"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "warning"),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "info"),
        ("", "warning"),
    ],
)
def test_what_another_xid_asks_for(message: str, severity: str) -> None:
    (finding,) = judged(node_of(xids=(Xid(address="0000:01:00.0", code=154, times=1, message=message),))(FIT))
    assert (finding.severity, finding.seen.endswith(message or "asks for this")) == (severity, True)


# Immediate action of NVIDIA's catalogue of Xids for B100: none, restart of the program, reset of the GPU, reboot.
@pytest.mark.parametrize(
    ("codes", "severity", "remedy"),
    [
        ((63,), "info", "Nothing has to be done"),
        ((13, 31, 43, 45), "info", "Search the engine's log"),
        ((8, 94), None, "Restart the engine"),
        ((46, 48, 62, 64, 95, 109, 119, 120, 140, 143, 158), "warning", "nvidia-smi --gpu-reset"),
        ((79,), "warning", "Reboot the node"),
    ],
)
def test_the_remedies_are_those_of_the_catalogue(codes: tuple[int, ...], severity: str | None, remedy: str) -> None:
    for code in codes:
        assert remedy in fitness.CODES[code].remedy
        assert severity in (None, fitness.CODES[code].severity)


@pytest.mark.parametrize("code", fitness.CODES)
def test_every_xid_of_the_table_is_explained(code: int) -> None:
    text = seen(node_of(xids=(Xid(address="0000:01:00.0", code=code, times=3, message=""),))(FIT))
    assert text.startswith(f"Xid {code} on 0000:01:00.0, 3 times since the boot: ")


# The toolkit that kernels are compiled with.

MIXED_TREE = replace(TREE, nvcc="13.3")


@pytest.mark.parametrize(
    ("trees", "toolkit", "expected"),
    [
        ((OLD_TREE, TREE), "/usr/local/cuda-13.0", [("cuda.others", "info")]),
        ((OLD_TREE, TREE), "/usr/local/cuda-13.0/", [("cuda.others", "info")]),
        ((OLD_TREE, TREE), "/usr/local/cuda", [("cuda.toolkit", "error")]),
        ((OLD_TREE, TREE), "/usr/local/cuda-12.8", [("cuda.toolkit", "error")]),
        ((TREE,), "/usr/local/cuda-13.0", []),
        ((TREE,), "", []),
        ((TREE,), "/opt/elsewhere", []),
        ((replace(TREE, nvcc="13.3", headers="13.3"),), TREE.path, [("cuda.toolkit", "warning")]),
        ((replace(TREE, nvcc="14.0", headers="14.0"),), TREE.path, [("cuda.toolkit", "error")]),
        ((replace(TREE, nvcc=""),), TREE.path, []),
        ((replace(TREE, headers=""),), TREE.path, []),
    ],
)
def test_the_toolkit_in_use(trees: tuple[CudaTree, ...], toolkit: str, expected: list[tuple[str, str]]) -> None:
    assert told(node_of(cuda_trees=trees)(FIT), toolkit=toolkit) == expected


def test_an_old_toolkit_is_told_with_what_the_card_needs() -> None:
    old = node_of(cuda_trees=(OLD_TREE,))(FIT)
    text = seen(old, toolkit="/usr/local/cuda")
    assert "/usr/local/cuda, which is /usr/local/cuda-12.8: nvcc 12.8, and torch is built for 13.0" in text
    assert text.endswith("kernels for SM120 need >= 12.9")
    assert "SM" not in seen(gpu(capability=90)(old), toolkit="/usr/local/cuda")


def test_two_versions_in_one_toolkit() -> None:
    mixed = judged(node_of(cuda_trees=(MIXED_TREE,))(FIT), toolkit=TREE.path)
    assert [finding.id for finding in mixed] == ["cuda.headers", "cuda.toolkit"]
    assert "nvcc 13.3 and headers of 13.0" in mixed[0].seen


# Whole nodes.

WHOLE = {
    "eight_rtx_pro_6000": [("numa.split", "info")],
    "eight_rtx_pro_6000_redirected": [("pcie.iommu", "error"), ("pcie.acs", "error"), ("numa.split", "info")],
    "eight_b200": [],
    "eight_b200_fabric_waits": [("pcie.peers", "warning"), ("fabric.state", "error")],
    "mixed": [
        ("cards.mixed", "warning"),
        ("pcie.peers", "warning"),
        ("numa.split", "info"),
        ("cuda.others", "info"),
    ],
}


def test_every_recorded_node_is_judged() -> None:
    assert {path.stem for path in NODES.glob("*.json")} == set(WHOLE)


@pytest.mark.parametrize("name", WHOLE)
def test_a_recorded_node(name: str) -> None:
    values = json.loads((NODES / f"{name}.json").read_text(encoding="utf-8"))
    hardware = Hardware.from_dict(values["hardware"])
    assert told(hardware) == WHOLE[name]
    assert Hardware.from_dict(json.loads(json.dumps(hardware.to_dict()))) == hardware
    settings = replace(SETTINGS, model="", locks={"3.12": "abc"})
    paths = (settings.releases_path, settings.cache_path, settings.toolkit)
    facts = node.NodeFacts.from_dict(values["node"], paths)
    found = rules.judge(settings, facts, RELEASES["0.5.12.post1"])
    assert [finding.id for finding in found] == ["node.distribution_untested"]
    assert [card.address for card in facts.gpus] == [card.address for card in hardware.gpus]


def test_memory_of_nothing_is_not_judged() -> None:
    assert told(node_of(memory=Memory())(FIT)) == []
