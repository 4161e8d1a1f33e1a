# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Each rule on drivers by one node that may have its driver changed, and the smallest change that forbids it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import apt, drivers, fitness, readings, rules
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.gpus import Process
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Driver, GpuState, Hardware, Kernel

RUNNING = "6.8.0-90-generic"
NEWER = "6.8.0-101-generic"
HARDWARE = Hardware(
    driver=Driver(version="580.95.05", flavour="open", kernels={RUNNING: True}, headers={RUNNING: True}),
    gpus=(GpuState(address="0000:01:00.0", index=0, product="RTX PRO 6000", power_max=600.0),),
    kernel=Kernel(release=RUNNING),
)
INSTALLED = {"nvidia-kernel-open-dkms": "580.95.05-1", "libcuda1": "580.95.05-1"}
UPGRADE = (apt.Change("Inst", "libcuda1", "580.95.05-1", "580.105.08-1", "Inst libcuda1"),)
FIT = drivers.Situation(
    hardware=HARDWARE,
    packages=("nvidia-kernel-open-dkms",),
    installed=INSTALLED,
    changes=UPGRADE,
    branch=580,
    limit=450,
)


def ids(findings: list[Finding]) -> list[str]:
    return [finding.id for finding in findings]


def with_driver(**changes: Any) -> drivers.Situation:
    return replace(FIT, hardware=replace(HARDWARE, driver=replace(HARDWARE.driver, **changes)))


def test_a_fit_node_has_no_findings() -> None:
    assert [*drivers.unfit(FIT), *drivers.before(FIT), *drivers.planned(FIT), *drivers.after(FIT)] == []


def test_a_container_is_left_alone() -> None:
    inside = replace(FIT, hardware=replace(HARDWARE, kernel=Kernel(container="podman")))
    (finding,) = drivers.unfit(inside)
    assert (finding.id, finding.severity, "podman" in finding.seen) == ("driver.container", "warning", True)


def test_no_gpu_is_left_alone() -> None:
    (finding,) = drivers.unfit(replace(FIT, hardware=replace(HARDWARE, gpus=())))
    assert (finding.id, finding.severity) == ("driver.no_gpu", "warning")


def test_a_runfile_is_told() -> None:
    (finding,) = drivers.before(replace(FIT, installed={"cuda-toolkit-13-0": "13.0.2-1"}, changes=()))
    assert (finding.id, "580.95.05" in finding.seen) == ("driver.runfile", True)
    # Nothing is loaded: a fresh node.
    assert drivers.runfile(replace(with_driver(version=""), installed={})) == []


@pytest.mark.parametrize(
    ("enrolled", "loaded", "found"),
    [
        (False, "", True),
        (False, "580.95.05", True),
        (None, "", True),
        (None, "580.95.05", False),
        (True, "", False),
    ],
)
def test_secure_boot_needs_an_enrolled_key(enrolled: bool | None, loaded: str, found: bool) -> None:
    situation = with_driver(secure_boot=True, key_enrolled=enrolled, version=loaded)
    assert ids(drivers.secure_boot(situation)) == ["driver.secure_boot"] * found
    assert drivers.secure_boot(with_driver(secure_boot=False, key_enrolled=enrolled, version=loaded)) == []


def test_secure_boot_is_no_fault_with_signed_modules() -> None:
    situation = with_driver(secure_boot=True, key_enrolled=False)
    assert drivers.before(situation)[0].seen == "Secure Boot on, DKMS key not enrolled"
    # Both places that are looked at: Debian's and Ubuntu's.
    for key in readings._SIGNING_KEYS:
        assert key in drivers.before(situation)[0].remedy
    assert drivers.before(replace(situation, packages=("linux-modules-nvidia-580-open-generic",))) == []


def test_headers_of_the_newest_kernel_are_a_warning() -> None:
    (finding,) = drivers.before(with_driver(headers={RUNNING: True, NEWER: False, "6.8.0-100-generic": True}))
    assert (finding.id, finding.severity) == ("driver.headers", "warning")
    assert f"{NEWER} has no headers: the next reboot would lose the driver" in finding.seen


def test_headers_of_the_running_kernel_are_an_error() -> None:
    (finding,) = drivers.before(with_driver(headers={RUNNING: False}))
    assert (finding.id, finding.severity) == ("driver.headers", "error")
    signed = replace(with_driver(headers={RUNNING: False}), packages=("linux-modules-nvidia-580-open-generic",))
    assert drivers.before(signed) == []


def test_a_module_that_is_built_needs_no_headers_until_another_is() -> None:
    serving = replace(with_driver(headers={RUNNING: False}), changes=())
    assert [finding.severity for finding in drivers.before(serving)] == ["warning"]
    bare = replace(with_driver(headers={RUNNING: False}, kernels={RUNNING: False}), changes=())
    assert [finding.severity for finding in drivers.before(bare)] == ["error"]


def busy() -> drivers.Situation:
    process = Process(4242, "python3", 0, unit="jupyter.service")
    gpus = tuple(replace(gpu, processes=(process, Process(7, "x", 0))) for gpu in HARDWARE.gpus * 2)
    return replace(FIT, hardware=replace(HARDWARE, gpus=gpus))


def test_busy_cards_keep_their_driver() -> None:
    (finding,) = drivers.before(busy())
    assert (finding.id, finding.severity) == ("driver.busy", "error")
    assert finding.seen == "GPUs are in use by 7 x, 4242 python3 (jupyter.service)"


def test_busy_cards_are_no_fault_where_nothing_changes() -> None:
    assert drivers.before(replace(busy(), changes=(), instances=("sglang-tiny.service",))) == []


def test_serving_instances_keep_their_driver() -> None:
    (finding,) = drivers.before(replace(FIT, instances=("sglang-tiny.service",)))
    assert (finding.id, "systemctl stop sglang-tiny.service" in finding.remedy) == ("driver.serving", True)


def test_a_reboot_ends_what_computes_as_well() -> None:
    """Nothing is to be installed, and another driver than the one that runs is: somebody upgraded it."""
    upgraded = replace(busy(), changes=(), installed={"libcuda1": "580.105.08-1"}, instances=("sglang-tiny.service",))
    assert ids(drivers.before(replace(upgraded, reboot="allowed"))) == ["driver.busy", "driver.serving"]
    assert drivers.before(upgraded) == []


def test_other_version_than_the_one_asked_for() -> None:
    assert drivers.planned(replace(FIT, version="580.105.08")) == []
    assert drivers.planned(replace(FIT, version="580.95.05", changes=())) == []
    (finding,) = drivers.planned(replace(FIT, version="580.82.07", changes=()))
    assert finding.seen == "nvidia_driver_version is 580.82.07, installed is 580.95.05, and apt would not install it"
    assert drivers.other_version(replace(FIT, version="580.82.07", changes=(), installed={})) == []


def test_check_mode_cannot_tell_that_a_newer_version_is_not_to_be_had() -> None:
    checked = replace(FIT, changes=(), refreshed=False)
    assert drivers.planned(replace(checked, version="580.105.08")) == []
    assert ids(drivers.planned(replace(checked, version="580.82.07"))) == ["driver.version"]
    # A bare node: apt knows no version of what it would install.
    step = apt.Change("Inst", "nvidia-kernel-open-dkms", "", "", "Inst nvidia-kernel-open-dkms")
    assert drivers.planned(replace(checked, version="580.105.08", installed={}, changes=(step,))) == []


@pytest.mark.parametrize(
    ("installed", "refreshed", "advice"),
    [
        ("590.44.01-1", True, "Set nvidia_driver_branch to 590"),
        ("590.44.01-1", False, "Set nvidia_driver_branch to 590"),
        ("1:570.195.03-0ubuntu1", True, "which branches the repository has"),
        ("1:570.195.03-0ubuntu1", False, ""),
    ],
)
def test_a_branch_that_apt_keeps(installed: str, refreshed: bool, advice: str) -> None:
    kept = replace(FIT, installed={"libcuda1": installed}, changes=(), refreshed=refreshed)
    found = drivers.planned(kept)
    assert ids(found) == ["driver.branch"] * bool(advice)
    assert all(advice in finding.remedy for finding in found)
    assert drivers.planned(replace(kept, changes=UPGRADE)) == []


def test_a_driver_of_an_older_branch_is_outdated() -> None:
    assert drivers.outdated({"libcuda1": "570.195.03-1"}, 580)
    assert not drivers.outdated({"libcuda1": "580.95.05-1"}, 580)
    assert not drivers.outdated({"libcuda1": "590.44.01-1"}, 580)
    assert not drivers.outdated({}, 580)


@pytest.mark.parametrize(
    "package",
    [
        *("nvidia-dkms-580", "nvidia-dkms-580-server", "nvidia-dkms", "nvidia-kernel-dkms", "nvidia-tesla-kernel-dkms"),
        *("nvidia-tesla-535-kernel-dkms", "linux-modules-nvidia-580-server-generic", "linux-objects-nvidia-580-6.8.0"),
    ],
)
def test_proprietary_modules_must_go_with_the_installation(package: str) -> None:
    beside = replace(FIT, installed={**INSTALLED, package: "580.95.05-1"})
    (finding,) = drivers.planned(beside)
    assert (finding.id, f"apt-get remove {package}" in finding.remedy) == ("driver.in_the_way", True)
    removal = apt.Change("Remv", package, "580.95.05-1", "", f"Remv {package}")
    assert drivers.planned(replace(beside, changes=(*UPGRADE, removal))) == []


@pytest.mark.parametrize(
    "package",
    [
        *("nvidia-dkms-580-open", "nvidia-dkms-580-server-open", "nvidia-kernel-open-dkms", "nvidia-open-kernel-dkms"),
        *(
            "linux-modules-nvidia-580-server-open-generic",
            "nvidia-driver",
            "nvidia-legacy-check",
            "nvidia-kernel-common",
        ),
    ],
)
def test_open_modules_are_in_nobodys_way(package: str) -> None:
    assert drivers.planned(replace(FIT, installed={**INSTALLED, package: "580.95.05-1"})) == []


@pytest.mark.parametrize("name", ["nvidia-fabricmanager", "nvidia-fabricmanager-580"])
def test_the_fabric_manager_changes_with_the_driver(name: str) -> None:
    wired = replace(HARDWARE, gpus=tuple(replace(gpu, fabric=("Completed", "Success")) for gpu in HARDWARE.gpus))
    left = replace(FIT, hardware=wired, installed={**INSTALLED, name: "580.95.05-1"})
    (finding,) = drivers.planned(left)
    assert (finding.id, finding.severity) == ("driver.fabric_manager", "error")
    assert f"{name} would be 580.95.05, and the driver 580.105.08" in finding.seen
    with_it = apt.Change("Inst", name, "580.95.05-1", "580.105.08-1", f"Inst {name}")
    assert drivers.planned(replace(left, changes=(*UPGRADE, with_it))) == []
    gone = apt.Change("Remv", name, "580.95.05-1", "", f"Remv {name}")
    assert drivers.planned(replace(left, changes=(*UPGRADE, gone))) == []
    assert drivers.planned(replace(left, changes=())) == []
    # No fabric, and nobody waits for it.
    assert drivers.planned(replace(left, hardware=HARDWARE)) == []


@pytest.mark.parametrize("limit", [700, 0, -1])
def test_a_power_limit_is_one_that_the_card_takes(limit: int) -> None:
    (finding,) = drivers.before(replace(FIT, limit=limit))
    assert (finding.id, "up to 600 W" in finding.seen) == ("driver.power_limit", True)


def test_a_power_limit_is_not_below_what_the_card_takes() -> None:
    least = replace(HARDWARE, gpus=(replace(HARDWARE.gpus[0], power_min=400.0),))
    assert drivers.before(replace(FIT, hardware=least, limit=400)) == []
    (finding,) = drivers.before(replace(FIT, hardware=least, limit=399))
    assert (finding.id, "takes from 400 W up to 600 W" in finding.seen) == ("driver.power_limit", True)


def test_the_limit_in_force_decides() -> None:
    """A run may have been killed between writing the unit and starting it."""
    gpus = [
        replace(HARDWARE.gpus[0], address=str(n), power_limit=limit) for n, limit in enumerate((600.0, 450.0, None))
    ]
    limited = replace(FIT, hardware=replace(HARDWARE, gpus=tuple(gpus)))
    assert drivers.power_differs(limited) == ["0"]
    assert drivers.power_differs(replace(limited, limit=None)) == []


def test_a_power_limit_is_not_judged_without_a_reading() -> None:
    unread = replace(HARDWARE, gpus=(GpuState(address="0000:01:00.0"),))
    assert drivers.before(replace(FIT, hardware=unread, limit=700)) == []
    assert drivers.before(replace(FIT, limit=None)) == []


@pytest.mark.parametrize(
    ("reboot", "advice"), [("allowed", "dkms status"), ("refused", "nvidia_driver_reboot"), ("local", "yourself")]
)
def test_reboot_pending_says_both_versions(reboot: Any, advice: str) -> None:
    installed = {"libnvidia-compute-580": "1:580.105.08-0ubuntu1", "nvidia-persistenced": "590.1-1"}
    (finding,) = drivers.after(replace(FIT, installed=installed, reboot=reboot))
    assert (finding.id, finding.severity) == ("driver.reboot_pending", "error")
    assert "driver 580.105.08 is installed, loaded is 580.95.05" in finding.seen
    assert advice in finding.remedy


def test_a_driver_that_is_not_loaded_is_pending() -> None:
    assert "loaded is none" in drivers.after(with_driver(version=""))[0].seen
    assert not drivers.pending(replace(with_driver(version=""), installed={"nvidia-settings": "580.95.05-1"}))


# What preflight leaves to the role (rules.DRIVERS): each ends it, or is mended by it.

BLACKWELL = replace(HARDWARE, gpus=(replace(HARDWARE.gpus[0], architecture="blackwell"),))
NVML = "Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.105"


def driver(hardware: Hardware = HARDWARE, **changes: Any) -> Hardware:
    return replace(hardware, driver=replace(hardware.driver, **changes))


@pytest.mark.parametrize(
    ("found", "hardware", "installed", "ends"),
    [
        ("driver.proprietary", driver(BLACKWELL, flavour="proprietary"), INSTALLED, "driver.reboot_pending"),
        ("driver.mismatch", driver(library="580.105.08"), {"libcuda1": "580.105.08-1"}, "driver.reboot_pending"),
        ("driver.mismatch", driver(complaint=NVML), {"libcuda1": "580.105.08-1"}, "driver.reboot_pending"),
        # A library of other means: no reboot mends it.
        ("driver.mismatch", driver(library="580.105.08"), INSTALLED, "driver.mismatch"),
        (
            "driver.complaint",
            driver(complaint="nvidia-smi -q -x did not answer within 60 s"),
            INSTALLED,
            "driver.complaint",
        ),
        ("driver.old", driver(version="570.195.03", library="570.195.03"), INSTALLED, "driver.reboot_pending"),
        ("driver.old", driver(version="570.195.03", library="570.195.03"), {}, "driver.old"),
        (
            "driver.secure_boot",
            driver(version="", flavour="", secure_boot=True, key_enrolled=False),
            INSTALLED,
            "driver.reboot_pending",
        ),
        (
            "cards.unlisted",
            replace(HARDWARE, gpus=(replace(HARDWARE.gpus[0], index=None),)),
            INSTALLED,
            "cards.unlisted",
        ),
    ],
)
def test_what_preflight_leaves_to_the_role_ends_there(
    found: str, hardware: Hardware, installed: dict[str, str], ends: str
) -> None:
    assert found in ids(fitness.judge(hardware, cuda="13.0"))
    assert found in rules.DRIVERS
    told = drivers.after(replace(FIT, hardware=hardware, installed=installed))
    assert ids(told) == [ends]
    assert told[0].severity == "error"


def test_a_build_that_is_denied_ends_there_once_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(fitness.DENIED[0], first="580.95.05", last="580.95.05", products="RTX PRO 6000")
    monkeypatch.setattr(fitness, "DENIED", (entry,))
    assert drivers.after(FIT) == []
    monkeypatch.setattr(fitness, "DENIED", (replace(entry, severity="error"),))
    assert ids(drivers.after(FIT)) == ["driver.denied"]


@pytest.mark.parametrize(("container", "advice"), [("", "modprobe nvidia"), ("podman", "podman container")])
def test_cards_without_a_driver_end_there(container: str, advice: str) -> None:
    """Of packages that no version is told by, and in a container, where the role installs nothing."""
    bare = replace(driver(version="", flavour=""), kernel=Kernel(release=RUNNING, container=container))
    (finding,) = drivers.after(replace(FIT, hardware=bare, installed={"nvidia-settings": "580.95.05-1"}))
    assert (finding.id, advice in finding.remedy) == ("driver.not_loaded", True)
    assert drivers.running(replace(FIT, hardware=replace(bare, gpus=()))) == []


def test_of_several_versions_the_newest_is_the_one_installed() -> None:
    assert (
        drivers.installed_version({"libcuda1": "580.105.08-1", "nvidia-kernel-open-dkms": "580.95.05-1"})
        == "580.105.08"
    )


# Settings.

REPOSITORY = {"cuda_repository_url": "https://mirror.example/cuda/", "cuda_toolkit_method": "wheels"}
MANAGED = {**REPOSITORY, "nvidia_driver_manage": True, "nvidia_driver_branch": 580, "nvidia_driver_packages": []}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"nvidia_driver_branch": 570}, ["apt.branch_old"]),
        ({"nvidia_driver_packages": ["nvidia-driver-580-server"]}, ["apt.proprietary"]),
        ({"nvidia_driver_packages": ["nvidia-headless-no-dkms-575-server-open"]}, ["apt.branch_other"]),
        ({"nvidia_driver_packages": ["--yes"]}, ["apt.package_name"]),
        ({"cuda_repository_url": ""}, ["apt.url"]),
        # The toolkit's own rules tell it.
        ({"cuda_repository_url": "", "cuda_toolkit_method": "apt"}, []),
        ({"nvidia_driver_manage": False, "nvidia_driver_branch": 570, "cuda_repository_url": ""}, []),
    ],
)
def test_settings_of_a_driver_are_judged_without_the_node(change: dict[str, Any], found: list[str]) -> None:
    assert ids(drivers.judge_settings({**MANAGED, **change})) == found


@pytest.mark.parametrize("missing", [*MANAGED])
def test_settings_of_a_wrong_type_are_told_once(missing: str) -> None:
    assert drivers.judge_settings({name: value for name, value in MANAGED.items() if name != missing}) == []


def test_packages_are_those_of_the_distribution_unless_chosen() -> None:
    assert "nvidia-kernel-open-dkms" in drivers.packages_for("debian")
    assert drivers.packages_for("ubuntu") == ("nvidia-open",)
    assert drivers.packages_for("fedora") == ()
    assert drivers.packages_for("debian", ["nvidia-open"]) == ("nvidia-open",)


@pytest.mark.parametrize("distribution", drivers.PACKAGES)
def test_the_packages_are_judged_good(distribution: str) -> None:
    assert apt.judge(apt.Installation(drivers.packages_for(distribution), 580)) == []


def test_the_pin_keeps_branch_or_version() -> None:
    assert "Pin: version 580.*\n" in drivers.pin(580)
    assert "Pin: version 580.105.08-*\n" in drivers.pin(580, "580.105.08")
    assert "Pin: version 580.105.08-*\n" in drivers.pin(580, "580.105.08-1")
    assert "Pin: release l=Other\nPin-Priority: 50\n" in drivers.pin(580, "", "release l=Other")
