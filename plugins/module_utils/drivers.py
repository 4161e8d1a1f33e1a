# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether the NVIDIA driver of a node may be installed or changed now, and whether it runs afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ansible_collections.inference.sglang.plugins.module_utils import apt, fitness, releases
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, errors
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Hardware

# Compute only, open kernel modules: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/debian.html.
# Of branch 590 on, NVIDIA's packages for Ubuntu carry no branch in their names; nvidia-open is there in every branch.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "debian": ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced"),
    "ubuntu": ("nvidia-open",),
}

# One of these is in every driver, and is of the driver's own version.
_TELLS_VERSION = re.compile(r"nvidia-kernel-open-dkms|nvidia-dkms-(?:\d+-)?open|libnvidia-compute(?:-\d+.*)?|libcuda1")

_SECURE_BOOT = "https://wiki.debian.org/SecureBoot#DKMS_and_secure_boot"


@dataclass(frozen=True)
class Situation:
    """A node whose driver is to be judged.

    ``packages``   the driver's packages that are asked for
    ``installed``  versions of installed packages of the driver
    ``changes``    what apt would do; none where the driver stays as it is
    ``branch``     the branch that is asked for; None where it is not to be judged yet
    ``version``    NVIDIA's exact version that is asked for; empty for any of the branch
    ``refreshed``  whether apt knows what the source has now, and the pin; not in check mode, where neither is written
    ``instances``  units ``sglang-*.service`` that run
    ``limit``      power limit that is asked for, W; None for the card's own
    ``reboot``     what may be done about a reboot: it is allowed, it is not, or the node is the controller itself
    """

    hardware: Hardware
    packages: tuple[str, ...] = ()
    installed: Mapping[str, str] | None = None
    changes: tuple[apt.Change, ...] = ()
    branch: int | None = None
    version: str = ""
    refreshed: bool = True
    instances: tuple[str, ...] = ()
    limit: int | None = None
    reboot: Literal["allowed", "refused", "local"] = "refused"


def packages_for(distribution: str, chosen: Iterable[str] = ()) -> tuple[str, ...]:
    """The packages that are asked for, or else those for a distribution by its ``ID``; empty for an unknown one."""
    return tuple(chosen) or PACKAGES.get(distribution, ())


def pin(branch: int, version: str = "", repository: str = "release l=NVIDIA CUDA") -> str:
    """Text of the preferences that keep the driver in a branch, or at one version: apt_preferences(5).

    Below 1000, so that apt never goes back to an older driver by itself. Other versions are below what
    is installed, so that they do not take its place.
    """
    names = "*nvidia* libcuda1 libcudadebugger1 libnvcuvid1 libnvoptix1 cuda-drivers*"
    meant = f"{upstream(version)}-*" if version else f"{branch}.*"
    lines = ["# Written by the role inference.sglang.nvidia_driver."]
    for what, priority in ((f"version {meant}", 990), (repository, 50)):
        lines += [f"Package: {names}", f"Pin: {what}", f"Pin-Priority: {priority}", ""]
    return "\n".join(lines)


def upstream(version: str) -> str:
    """NVIDIA's version in a Debian one: ``580.95.05`` of ``1:580.95.05-0ubuntu1``."""
    return re.sub(r"^\d+:|-.*$", "", version)


def installed_version(installed: Mapping[str, str]) -> str:
    """NVIDIA's version of the driver that is installed as packages; empty where none is."""
    found = [upstream(version) for name, version in installed.items() if _TELLS_VERSION.fullmatch(name)]
    return max(found, key=_ordered, default="")


def outdated(installed: Mapping[str, str], branch: int) -> bool:
    """Whether the driver that is installed is of an older branch."""
    version = installed_version(installed)
    return bool(version) and _ordered(version) < (branch,)


def pending(situation: Situation) -> bool:
    """Whether another driver is installed than the one that runs. Packages that this role takes have open modules."""
    version, running = installed_version(situation.installed or {}), situation.hardware.driver
    return bool(version) and (version != running.version or running.flavour == "proprietary")


def power_differs(situation: Situation) -> list[str]:
    """Addresses of the cards whose power limit in force is not the one that is asked for."""
    limits = {gpu.address: gpu.power_limit for gpu in situation.hardware.gpus if gpu.power_limit is not None}
    return [address for address, limit in limits.items() if situation.limit not in (None, limit)]


def judge_settings(values: Mapping[str, Any]) -> list[Finding]:
    """What the settings of roles ``nvidia_driver`` and ``cuda_repository`` say of a driver, without the node.

    Where the toolkit comes from the repository, its own rules judge the URL.
    """
    found = []
    if values.get("nvidia_driver_manage"):
        branch, packages = values.get("nvidia_driver_branch"), values.get("nvidia_driver_packages")
        # What is of a wrong type is told by itself.
        if branch is not None and packages is not None:
            found += apt.judge(apt.Installation(tuple(map(str, packages)), branch))
        if "cuda_repository_url" in values and values.get("cuda_toolkit_method") != "apt":
            found += apt.judge_url(str(values["cuda_repository_url"]))
    return found


def unfit(situation: Situation) -> list[Finding]:
    """Why there is nothing to manage on a node; with a finding, the driver is left alone."""
    return [*container(situation), *no_gpu(situation)]


def before(situation: Situation) -> list[Finding]:
    """Whether packages may be installed now."""
    return [
        *runfile(situation),
        *secure_boot(situation),
        *headers(situation),
        *busy(situation),
        *serving(situation),
        *power_limit(situation),
    ]


def planned(situation: Situation) -> list[Finding]:
    """Whether what is installed, with what apt would change, is what is asked for."""
    return [
        *other_version(situation),
        *branch_kept(situation),
        *in_the_way(situation),
        *fabric_manager(situation),
    ]


def after(situation: Situation) -> list[Finding]:
    """Whether what is installed runs. Nothing else can be told before a reboot that is pending."""
    return reboot_pending(situation) or running(situation)


def running(situation: Situation) -> list[Finding]:
    """Whether the driver runs, whoever installed it: what preflight leaves to this role."""
    return [*not_loaded(situation), *faulty(situation)]


def container(situation: Situation) -> list[Finding]:
    """The driver is the machine's."""
    kind = situation.hardware.kernel.container
    if not kind:
        return []
    remedy = "Install the driver on the machine that the container runs on, or set nvidia_driver_manage to false"
    return [
        Finding("driver.container", "warning", f"The node is a container ({kind}), the driver is left alone", remedy)
    ]


def no_gpu(situation: Situation) -> list[Finding]:
    """By the PCI bus, which needs no driver."""
    if situation.hardware.gpus:
        return []
    seen = "No NVIDIA GPU is on the PCI bus, the driver is left alone"
    remedy = "Set nvidia_driver_manage to false for this node, or look for the card with lspci -nn"
    return [Finding("driver.no_gpu", "warning", seen, remedy, "/sys/bus/pci/devices")]


def _built_here(situation: Situation) -> bool:
    """Whether DKMS builds the modules, and signs them by its own key; Ubuntu's own modules are signed by it."""
    return not any(name.startswith("linux-modules-nvidia") for name in situation.packages)


def runfile(situation: Situation) -> list[Finding]:
    """NVIDIA's own installer writes the same files as the packages, and neither knows of the other."""
    driver = situation.hardware.driver
    if not driver.version or any(apt.is_driver(name) for name in situation.installed or {}):
        return []
    seen = f"Driver {driver.version} is loaded, and no package has it: it was installed by other means"
    remedy = "Remove it (nvidia-uninstall) and reboot, or keep it and set nvidia_driver_manage to false"
    return [Finding("driver.runfile", "error", seen, remedy, apt.GUIDE)]


def secure_boot(situation: Situation) -> list[Finding]:
    """The kernel rejects modules whose key nobody enrolled, and enrolling needs a person at the console."""
    driver = situation.hardware.driver
    unknown = driver.key_enrolled is None and not driver.version
    if not driver.secure_boot or not _built_here(situation) or not (driver.key_enrolled is False or unknown):
        return []
    made = "; where there is none yet, the first build of any module by DKMS makes it" if unknown else ""
    return [
        Finding(
            "driver.secure_boot",
            "error",
            f"Secure Boot on, DKMS key not {'known to be ' if unknown else ''}enrolled",
            f"Enrol it ({fitness.ENROL}, reboot, confirm at the console){made}, or use signed modules",
            _SECURE_BOOT,
        )
    ]


def headers(situation: Situation) -> list[Finding]:
    """DKMS builds a module for each kernel that has its headers, and for no other."""
    hardware, found = situation.hardware, []
    running = hardware.kernel.release
    newest = max(hardware.driver.headers, key=_ordered, default=running)
    if not _built_here(situation):
        return []
    for kernel in dict.fromkeys((running, newest)):
        if hardware.driver.headers.get(kernel, True):
            continue
        # One that has its module works, until another is to be built.
        built = hardware.driver.kernels.get(kernel) is True and not situation.changes
        now = kernel == running and not built
        found.append(
            Finding(
                "driver.headers",
                "error" if now else "warning",
                f"Kernel {kernel} has no headers: "
                + ("no module can be built for it" if now or built else "the next reboot would lose the driver"),
                f"Install linux-headers-{kernel}, or remove that kernel",
                apt.GUIDE,
            )
        )
    return found


def _ordered(kernel: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", kernel))


def busy(situation: Situation) -> list[Finding]:
    """The libraries under a running program change, while the module that it talks to does not; a reboot ends it."""
    seen = {(process.pid, process.name, process.unit) for gpu in situation.hardware.gpus for process in gpu.processes}
    if not _disturbs(situation) or not seen:
        return []
    told = ", ".join(f"{pid} {name}{f' ({unit})' if unit else ''}" for pid, name, unit in sorted(seen))
    remedy = "End them, and run again: the driver is never changed under a running program"
    return [Finding("driver.busy", "error", f"GPUs are in use by {told}", remedy, "pando85/homelab#4110")]


def serving(situation: Situation) -> list[Finding]:
    """Also where the instance does not hold a GPU at this moment."""
    if not _disturbs(situation) or not situation.instances:
        return []
    units = " ".join(situation.instances)
    remedy = f"Drain and stop it (systemctl stop {units}), and run again: the driver is never changed under it"
    return [Finding("driver.serving", "error", f"The driver would change while {units} runs", remedy)]


def _disturbs(situation: Situation) -> bool:
    return bool(situation.changes) or (pending(situation) and situation.reboot == "allowed")


def other_version(situation: Situation) -> list[Finding]:
    """apt keeps what is newer, and takes what there is."""
    version, there = upstream(situation.version), installed_version(situation.installed or {})
    coming = _coming(situation)
    # Nothing is installed and nothing is planned yet: the source is still to come.
    if not version or version in {there, *coming} or not (there or coming):
        return []
    if not situation.refreshed and _ordered(version) > _ordered(there):
        return []
    seen = f"nvidia_driver_version is {version}, installed is {there or 'none'}, and apt would not install it"
    remedy = "Choose one that the repository has (apt-cache policy libcuda1); for an older one, remove the driver first"
    return [Finding("driver.version", "error", seen, remedy, "apt_preferences(5)")]


def _coming(situation: Situation) -> set[str]:
    """Versions of the driver that apt would install."""
    steps = [step for step in situation.changes if step.new and _TELLS_VERSION.fullmatch(step.package)]
    return {upstream(step.new) for step in steps}


def branch_kept(situation: Situation) -> list[Finding]:
    """apt keeps what is newer, or what the repository has nothing newer for. What is coming, the simulation tells."""
    there, branch = installed_version(situation.installed or {}), situation.branch
    if branch is None or not there or _coming(situation) or _ordered(there)[:1] == (branch,):
        return []
    older = outdated(situation.installed or {}, branch)
    if older and not situation.refreshed:
        return []
    seen = f"nvidia_driver_branch is {branch}, installed is {there}, and apt would not change it"
    remedy = f"Set nvidia_driver_branch to {there.partition('.')[0]}, or remove the driver first"
    if older:
        remedy = "See in apt-cache policy libcuda1 which branches the repository has"
    return [Finding("driver.branch", "error", seen, remedy, "apt_preferences(5)")]


def in_the_way(situation: Situation) -> list[Finding]:
    """Proprietary kernel modules beside the open ones: which of them is loaded, nobody has decided."""
    gone = {step.package for step in situation.changes if step.action != "Inst"}
    wrong = sorted(name for name in situation.installed or {} if apt.has_proprietary_modules(name) and name not in gone)
    if not wrong:
        return []
    seen = f"{', '.join(wrong)}: proprietary kernel modules, which apt would leave installed beside the open ones"
    remedy = f"Remove them (apt-get remove {' '.join(wrong)}), and run again"
    return [Finding("driver.in_the_way", "error", seen, remedy, apt.OPEN_ONLY)]


def fabric_manager(situation: Situation) -> list[Finding]:
    """It runs with the driver of its own version alone, and no GPU of an NVLink fabric computes without it."""
    manager = re.compile(r"nvidia-fabricmanager(-\d+)?")
    installed = {name: version for name, version in (situation.installed or {}).items() if manager.fullmatch(name)}
    steps = {step.package: step.new for step in situation.changes if manager.fullmatch(step.package)}
    version = max(_coming(situation), key=_ordered, default=installed_version(situation.installed or {}))
    left = {name: told for name, told in {**installed, **steps}.items() if told and upstream(told) != version}
    if not version or not left or not any(any(gpu.fabric) for gpu in situation.hardware.gpus):
        return []
    name, told = next(iter(left.items()))
    seen = f"{name} would be {upstream(told)}, and the driver {version}: no GPU of the NVLink fabric would compute"
    remedy = f"Name all packages in nvidia_driver_packages, {name} with them, so that they change together"
    return [Finding("driver.fabric_manager", "error", seen, remedy, apt.GUIDE)]


def power_limit(situation: Situation) -> list[Finding]:
    """nvidia-smi refuses what is outside the card's range."""
    found = []
    for gpu in situation.hardware.gpus:
        if situation.limit is None:
            continue
        above = gpu.power_max is not None and situation.limit > gpu.power_max
        below = gpu.power_min is not None and situation.limit < gpu.power_min
        if above or below or situation.limit <= 0:
            bounds = f"from {gpu.power_min:g} W " if gpu.power_min is not None else ""
            seen = f"nvidia_driver_power_limit is {situation.limit} W; {gpu.product or gpu.address} takes {bounds}"
            seen += f"up to {gpu.power_max:g} W" if gpu.power_max is not None else "more than that"
            remedy = "Set it to a limit that the card takes, or remove the line"
            found.append(Finding("driver.power_limit", "error", seen, remedy, "nvidia-smi -q -d POWER"))
    return found[:1]


def reboot_pending(situation: Situation) -> list[Finding]:
    """A driver that is installed and not loaded fails every program with a version mismatch."""
    if not pending(situation):
        return []
    version, loaded = installed_version(situation.installed or {}), situation.hardware.driver.version
    remedy = {
        "allowed": "Look for the module's build (dkms status; journalctl -b -k): the node was rebooted",
        "refused": "Reboot the node, or set nvidia_driver_reboot to true, and run again",
        "local": "Reboot this machine yourself, and run again: it is the one that Ansible runs on",
    }[situation.reboot]
    flavour = " with open modules" if loaded == version else ""
    loaded = f"{loaded} with proprietary ones" if loaded == version else loaded or "none"
    seen = f"Reboot pending: driver {version}{flavour} is installed, loaded is {loaded}; the service was not touched"
    return [Finding("driver.reboot_pending", "error", seen, remedy, "pando85/homelab#4110")]


def not_loaded(situation: Situation) -> list[Finding]:
    """Cards without a driver serve nothing, in a container as well."""
    if situation.hardware.driver.version or not situation.hardware.gpus:
        return []
    kind = situation.hardware.kernel.container
    seen = f"The node has {len(situation.hardware.gpus)} NVIDIA GPU(s), and no NVIDIA driver is loaded"
    remedy = "Load it (modprobe nvidia), and look for what stands in its way: journalctl -k -b; dkms status"
    if kind:
        remedy = f"Load it on the machine that the {kind} container runs on, and give the container its devices"
    return [Finding("driver.not_loaded", "error", seen, remedy, "/proc/driver/nvidia/version")]


def faulty(situation: Situation) -> list[Finding]:
    """What makes a driver of no use, by the rules that preflight judges by: it told them as warnings, for this role."""
    cuda = max((release.cuda for release in releases.RELEASES.values()), key=_ordered)
    wrong = errors(fitness.judge(situation.hardware, cuda=cuda))
    return [finding for finding in wrong if finding.id.startswith("driver.") or finding.id == "cards.unlisted"]


RULES: tuple[Callable[[Situation], list[Finding]], ...] = (
    container,
    no_gpu,
    runfile,
    secure_boot,
    headers,
    busy,
    serving,
    other_version,
    branch_kept,
    in_the_way,
    fabric_manager,
    power_limit,
    reboot_pending,
    not_loaded,
    faulty,
)
