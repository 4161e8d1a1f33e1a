# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rules: settings and a node's facts against a release, one small function a rule."""

from __future__ import annotations

import ipaddress
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ansible_collections.inference.sglang.plugins.module_utils import fitness, releases, toolkit_rules, weights
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Hardware
from ansible_collections.inference.sglang.plugins.module_utils.node import HiddenPath, Listener, ModelFiles, NodeFacts
from ansible_collections.inference.sglang.plugins.module_utils.releases import Release
from ansible_collections.inference.sglang.plugins.module_utils.settings import NodeSettings
from ansible_collections.inference.sglang.plugins.module_utils.toolkit_rules import Tree

HERE = "plugins/module_utils/rules.py"

DISTRIBUTIONS: dict[tuple[str, str], bool] = {
    ("debian", "12"): True,
    ("debian", "13"): True,
    ("ubuntu", "22.04"): False,
    ("ubuntu", "24.04"): False,
}
"""Supported distributions; true for those that this collection's tests boot."""

OWN_PYTHON = {
    ("debian", "12"): "3.11",
    ("debian", "13"): "3.13",
    ("ubuntu", "22.04"): "3.10",
    ("ubuntu", "24.04"): "3.12",
}
"""The Python that a distribution's ``python3-dev`` brings the headers of."""

MACHINE, LEAST_GLIBC = releases.PLATFORM.split("-manylinux_")
DRIVERS = (
    *("gpu.driver_missing", "driver.proprietary", "driver.mismatch", "driver.complaint", "driver.old", "driver.denied"),
    *("driver.secure_boot", "cards.unlisted", "cards.bound"),
)
"""Findings that another driver, or a reboot into it, makes go away."""

ACCEPTABLE = ("cards", "cuda", "driver", "fabric", "kernel", "memory", "nvlink", "pcie", "weights", "xid")
"""Rooms and kinds of findings about hardware and weights that an operator may know better about."""

BOOT = ("pcie.iommu", "pcie.acs")
"""Findings that boot parameters make go away."""

LINKED_MB = 100
"""What a release costs beside the cache whose files it links: folders, scripts, byte code; MB, measured."""
CACHED_MB = 300
"""What uv's cache holds beside the files that are linked from it: its own records; MB, measured."""
SPARE_MB = 2000
"""What must stay free for logs, compiled kernels and the system, MB."""


OF_TOOLKIT = ("cuda.toolkit", "cuda.headers")
"""Findings about the toolkit that is used, from a look at the usual places; a reading of its folder tells more."""


def judge(
    settings: NodeSettings,
    facts: NodeFacts,
    release: Release,
    hardware: Hardware | None = None,
    toolkit: Tree | None = None,
) -> list[Finding]:
    """Every rule's findings, in the order in which a reader would mend them, and those about the ``hardware``.

    ``toolkit``  what lies at ``settings.cuda_home``; None where nobody looked
    """
    found = [finding for rule in RULES for finding in rule(settings, facts, release)]
    if settings.cuda_home and toolkit:
        wanted = toolkit_rules.Wanted(
            method=toolkit_rules.EXISTING,
            version=settings.cuda_version or release.cuda,
            torch=release.cuda,
            home=os.path.normpath(settings.cuda_home),
            architecture=settings.cuda_architecture,
        )
        found += toolkit_rules.judge(wanted, toolkit)
    if hardware:
        of_hardware = fitness.judge(
            hardware,
            cuda=release.cuda,
            toolkit=settings.cuda_home,
            p2p_fallback=settings.p2p_fallback,
            gpus=settings.gpus,
        )
        found += [finding for finding in of_hardware if not (toolkit and finding.id in OF_TOOLKIT)]
    # In a container the kernel is the host's: no role sets it right.
    contained = hardware is not None and bool(hardware.kernel.container)
    judged = found if contained else [_mended(finding, settings) for finding in found]
    return [
        replace(finding, severity="warning")
        if finding.severity == "error" and finding.id in settings.accepted
        else finding
        for finding in judged
    ]


def _mended(finding: Finding, settings: NodeSettings) -> Finding:
    """What a role sets right afterwards, or refuses itself, is no error before it has run."""
    driver = settings.driver_managed and finding.id in DRIVERS
    boot = settings.boot_managed and finding.id in BOOT
    if finding.severity != "error" or not (driver or boot):
        return finding
    role, switch, does = (
        ("nvidia_driver", "nvidia_driver_manage", "installs the driver or says why not")
        if driver
        else ("node_settings", "preflight_fix_boot", "writes the boot parameters, and ends the run until the reboot")
    )
    remedy = f"Role {role} {does}, as {switch} is true"
    return replace(finding, severity="warning", remedy=remedy, source=f"roles/{role}/README.md")


def known_faults(flags: Mapping[str, object], python: str, release: Release) -> list[Finding]:
    """What the flags ask for and the release cannot do on a Python, although its parser accepts it.

    Needs no facts, so that the controller can judge by the Python minor version that the lock is chosen by.
    Source: ``Release.known_faults``.
    """
    asked = {(f"--{str(name).strip().lstrip('-')}", str(value)) for name, value in flags.items()}
    return [
        Finding(
            "release.known_fault",
            "error",
            fault.seen,
            fault.remedy,
            fault.source,
        )
        for fault in release.known_faults
        if fault.python in ("", python) and (fault.flag, fault.value) in asked
    ]


def architecture(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """The locks are resolved for one machine architecture. Source: ``releases.PLATFORM``."""
    if facts.architecture == MACHINE:
        return []
    return [
        Finding(
            "node.architecture",
            "error",
            f"The node is {facts.architecture}; SGLang {release.version} is locked for {MACHINE} only",
            f"Use an {MACHINE} node, or take this one out of the inventory",
            "plugins/module_utils/releases.py",
        )
    ]


def distribution(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """Packages are named for these distributions. Source: the table ``DISTRIBUTIONS``."""
    seen = f"{facts.distribution} {facts.distribution_version}".strip() or "without os-release"
    tested = DISTRIBUTIONS.get((facts.distribution, facts.distribution_version))
    supported = ", ".join(" ".join(pair) for pair in DISTRIBUTIONS)
    if tested is None:
        return [
            Finding("node.distribution", "error", f"The node is {seen}", f"Use one of: {supported}", HERE),
        ]
    if not tested:
        booted = ", ".join(" ".join(pair) for pair, booted in DISTRIBUTIONS.items() if booted)
        return [
            Finding(
                "node.distribution_untested",
                "info",
                f"The node is {seen}: supported, but the tests of this collection boot {booted} only",
                "Try one node first",
                HERE,
            )
        ]
    return []


def systemd(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """An instance is a unit of systemd; a container that is rented often has another init. Source: sd_booted(3)."""
    if facts.systemd is not False:
        return []
    return [
        Finding(
            "node.systemd",
            "error",
            "systemd does not run on the node, which would start, watch and restart the engine",
            "Use a machine or a container that boots systemd; one that only runs a command has none",
            "https://man7.org/linux/man-pages/man3/sd_booted.3.html",
        )
    ]


def glibc(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """The kernel wheel carries the tag ``manylinux_2_34``. Source: PEP 600 and the lock."""
    if facts.glibc and _number(facts.glibc, ".") >= _number(LEAST_GLIBC, "_"):
        return []
    return [
        Finding(
            "node.glibc",
            "error",
            f"The node has {'glibc ' + facts.glibc if facts.glibc else 'no glibc'}; the wheels need "
            f"{LEAST_GLIBC.replace('_', '.')} or newer",
            "Use a newer distribution",
            "https://peps.python.org/pep-0600/",
        )
    ]


def python(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """A release has one lock a Python minor version. Source: ``releases``."""
    if not facts.python:
        return [
            Finding(
                "node.python",
                "error",
                f"{settings.python} is not there, or does not answer as Python 3",
                f"Install it, or set sglang_python to the path of a Python {' or '.join(release.pythons)}",
                "plugins/module_utils/releases.py",
            )
        ]
    if settings.python_version not in ("", facts.python):
        return [
            Finding(
                "node.python_version",
                "error",
                f"{settings.python} is Python {facts.python}, and sglang_python_version is {settings.python_version}",
                f"Set sglang_python_version to {facts.python}, or sglang_python to a Python {settings.python_version}",
                "roles/sglang/defaults/main.yml",
            )
        ]
    return releases.check(release.version, facts.python)


def python_headers(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """Triton compiles against the headers of the interpreter, or of its base, minutes into the start. Role ``uv``
    installs ``uv_packages``; a Python of uv's brings its own headers. Source: odysseus-dev/odysseus#6257.
    """
    if facts.python_headers is not False or not facts.python:
        return []
    own = OWN_PYTHON.get((facts.distribution, facts.distribution_version)) == facts.python
    package = "python3-dev" if own else f"python{facts.python}-dev"
    if {package, f"python{facts.python}-dev", f"libpython{facts.python}-dev"} & set(settings.packages):
        return []
    return [
        Finding(
            "python.headers",
            "error",
            f"{settings.python} is Python {facts.python}, its Python.h is not on the node, and nothing in uv_packages "
            "brings it",
            f"Add {package} to uv_packages",
            "odysseus-dev/odysseus#6257",
        )
    ]


def numa_library(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """The kernel wheel is linked against it, and no wheel brings it. Source: sgl-project/sglang#18644."""
    if facts.numa_library is not False or "libnuma1" in settings.packages:
        return []
    return [
        Finding(
            "library.numa",
            "error",
            "libnuma.so.1 is not on the node, and uv_packages does not have libnuma1",
            "Add libnuma1 to uv_packages",
            "sgl-project/sglang#18644",
        )
    ]


def gpu(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """A node without an NVIDIA GPU is let through only on request. Source: the PCI bus."""
    if facts.gpus:
        return []
    if settings.gpu_required:
        return [
            Finding(
                "gpu.missing",
                "error",
                "The node has no NVIDIA GPU on its PCI bus",
                "Check the card and its seat, or set preflight_gpu_required to false for a node that is to go without",
                "/sys/bus/pci/devices",
            )
        ]
    return [
        Finding(
            "gpu.absent",
            "info",
            "The node has no NVIDIA GPU; this goes on because preflight_gpu_required is false",
            "Set preflight_gpu_required to true where a GPU is expected",
            "/sys/bus/pci/devices",
        )
    ]


def driver(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """A GPU without a loaded driver serves nothing. Source: ``/proc/driver/nvidia/version``."""
    if not facts.gpus or facts.driver or settings.cpu_engine:
        return []
    cards = ", ".join(f"{card.address} ({card.device})" for card in facts.gpus)
    return [
        Finding(
            "gpu.driver_missing",
            "error",
            f"The node has {len(facts.gpus)} NVIDIA GPU(s), {cards}, and no NVIDIA driver is loaded",
            "Install the NVIDIA driver with its open kernel module, load it, and run this again",
            "/proc/driver/nvidia/version",
        )
    ]


def cpu_engine(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """The stand-in for a driver must never meet a real one. Source: ``roles/cpu_engine``."""
    if not settings.cpu_engine or not (facts.driver or facts.driver_library):
        return []
    seen = facts.driver or f"{facts.driver_library} is installed"
    return [
        Finding(
            "cpu_engine.driver_present",
            "error",
            f"cpu_engine_enabled is true, and the node has an NVIDIA driver ({seen})",
            "Set cpu_engine_enabled to false: the CPU engine replaces the driver's library",
            "roles/cpu_engine/README.md",
        )
    ]


def disk(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """Room for what is not installed yet, by mount. Source: sizes measured in ``releases`` and here.

    uv links files from its cache into a release on the same mount; on another mount it copies them. What a release that
    is not cached needs is an upper bound where others are: wheels that it shares with them are not fetched again. Of a
    model that is to be fetched, what is there already is not counted.
    """
    needs: dict[str, int] = defaultdict(int)
    linked = facts.spaces[settings.releases_path].mount == facts.spaces[settings.cache_path].mount
    lock = settings.locks.get(facts.python, "")
    if not any(done.version == release.version and done.lock == lock for done in facts.releases):
        needs[settings.releases_path] += LINKED_MB if linked else release.install_mb
        if lock not in facts.cached_locks:
            needs[settings.cache_path] += release.install_mb + CACHED_MB
    # No lock: packages or somebody else bring it.
    if settings.toolkit_lock and not facts.toolkit_installed and settings.toolkit_lock not in facts.cached_locks:
        needs[settings.toolkit] += releases.TOOLKIT_INSTALL_MB
    model_mb = round((settings.model_size_gb * 10**9 - facts.model_stored) * weights.SPARE / 10**6)
    if settings.model_download in facts.spaces and model_mb > 0:
        needs[settings.model_download] += model_mb
    found = []
    for device in dict.fromkeys(facts.spaces[path].device for path in needs):
        here = [path for path in needs if facts.spaces[path].device == device]
        free = facts.spaces[here[0]].free_bytes
        missing = (sum(needs[path] for path in here) + SPARE_MB) * 10**6 - free
        if missing > 0:
            most = {settings.cache_path: "at most "} if facts.cached_locks else {}
            parts = ", ".join(f"{most.get(path, '')}{needs[path] / 1000:.1f} GB below {path}" for path in here)
            found.append(
                Finding(
                    "disk.too_small",
                    "error",
                    f"{free / 10**9:.1f} GB are free on {facts.spaces[here[0]].mount}; needed are {parts}, "
                    f"and {SPARE_MB / 1000:.1f} GB to spare: {missing / 10**9:.1f} GB are missing",
                    f"Free that much, or set {_movable(settings, here)} to a folder on a larger disk",
                    "plugins/module_utils/releases.py",
                )
            )
    return found


def one_mount(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """Hard links do not cross mounts: 4 s and no disk on one mount, a full copy on two. Source: link(2), EXDEV."""
    installed, cache = facts.spaces[settings.releases_path], facts.spaces[settings.cache_path]
    if installed.mount == cache.mount:
        return []
    return [
        Finding(
            "disk.two_mounts",
            "warning",
            f"{installed.path} lies on {installed.mount} and {cache.path} on {cache.mount}: "
            "every release is a full copy of the cached files",
            "Set sglang_releases_path and sglang_cache_path to folders on one mount",
            "https://man7.org/linux/man-pages/man2/link.2.html",
        )
    ]


def port(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """The address must be free, or held by this very instance. Source: ``/proc/net/tcp``."""
    unit = f"sglang-{settings.instance}.service"
    taken = [
        listener for listener in facts.listeners if listener.unit != unit and _meets(settings.host, listener.address)
    ]
    return [
        Finding(
            "port.taken",
            "error",
            f"Port {listener.port} on {listener.address} is held by {_holder(listener)}, not by {unit}",
            "Stop that service, or set sglang_server_port to a free port",
            "/proc/net/tcp",
        )
        for listener in taken
    ]


def model(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """SGLang reports unreadable weights as missing, minutes into loading. Source: ``open(2)``, path_resolution(7)."""
    source = "https://man7.org/linux/man-pages/man7/path_resolution.7.html"
    if not os.path.isabs(settings.model or "/"):
        return [
            Finding(
                "model.not_a_path",
                "error",
                f"{settings.model} is not the absolute path of a folder",
                "Set model_weights_path to such a folder, or model_weights_source to where it is fetched from",
                "roles/model_weights/README.md",
            )
        ]
    files = facts.model
    if files is None:
        return []
    if not files.exists:
        return [
            Finding(
                "model.missing",
                "error",
                f"{files.path} does not exist on the node",
                "Mount or copy the model there, or correct model_weights_path",
                source,
            )
        ]
    found = _unreadable(settings, files)
    if files.unseen:
        found.append(
            Finding(
                "model.unseen",
                "warning",
                f"{files.unseen} cannot be looked into by the user that runs this check",
                "Run with become, or allow root on that file system",
                source,
            )
        )
    if not files.folder:
        found.append(_no_folder(files))
    elif files.files and not files.config and not found:
        found.append(
            Finding(
                "model.no_config",
                "error",
                f"{files.path} has no config.json",
                "Set model_weights_path to the folder that has it, or finish copying the model",
                "roles/model_weights/README.md",
            )
        )
    # What cannot be looked into is neither missing nor damaged; role sglang_server looks as the service user.
    if files.stock and not files.unseen:
        found += [fault for fault in weights.judge(files.stock) if fault.id not in settings.model_waived]
    if not files.files and not found:
        found.append(
            Finding(
                "model.empty",
                "error",
                f"{files.path} is empty",
                "Mount or copy the model there, or correct model_weights_path",
                source,
            )
        )
    return found


def download(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """What lies where a role will fetch the model to: it mends what it fetched itself, and nothing else.

    Source: ``conflicts`` and ``another`` in ``weights``, by which the role refuses.
    """
    files = facts.download
    if files is None:
        return []
    if not files.folder:
        return [_no_folder(files)]
    # The role that starts the service looks as its user, when everything is there.
    found = [replace(finding, severity="warning") for finding in _unreadable(settings, files)]
    if files.stock and files.fetched and not files.unseen:
        told = weights.judge_fetched(files.fetched, files.stock, settings.model_wanted, settings.model_size_gb)
        found += [finding for finding in told if finding.id not in settings.model_waived]
    return found


def hidden(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """The sandbox of the instance's unit shows some folders empty. Source: systemd.exec(5), ``node.HIDDEN``.

    A path below one that is told already is mended with it.
    """
    paths = list(facts.hidden)
    setting = "sglang_server_model_path"
    if facts.model and facts.model.hidden and not any(path.setting == setting for path in paths):
        paths.append(HiddenPath(setting, facts.model.path, facts.model.hidden))
    told: list[str] = []
    found = []
    for path in paths:
        if any(os.path.commonpath((path.path, parent)) == parent for parent in told):
            continue
        told.append(os.path.normpath(path.path))
        leads = "" if os.path.normpath(path.path) == path.target else f"leads to {path.target}, which "
        found.append(
            Finding(
                "path.hidden",
                "error",
                f"{path.setting}: {path.path} {leads}"
                "lies where the instance's unit sees an empty folder (ProtectHome=, PrivateTmp=)",
                "Move it, for example below /srv or /var/lib/sglang/models, and correct the setting",
                "https://man7.org/linux/man-pages/man5/systemd.exec.5.html",
            )
        )
    return found


def user(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """Role ``sglang`` takes home and shell from the account of that name. Source: ``/etc/passwd``, useradd(8).

    Accounts of people have ids from 1000 on (``UID_MIN`` of login.defs), or a shell to log in with.
    """
    login = facts.login
    if login is None or (0 < login.uid < 1000 and os.path.basename(login.shell) in ("nologin", "false")):
        return []
    return [
        Finding(
            "user.taken",
            "error",
            f"sglang_user {login.name} is an account that is there already, with uid {login.uid} "
            f"and shell {login.shell or '/bin/sh'}; the installation would take its home and shell away",
            "Set sglang_user to a name that is not in use, such as sglang",
            "/etc/passwd",
        )
    ]


def accepted(settings: NodeSettings, facts: NodeFacts, release: Release) -> list[Finding]:
    """An operator may know hardware and weights better, and nothing else. Source: ``ACCEPTABLE``."""
    strangers = [name for name in settings.accepted if name.partition(".")[0] not in ACCEPTABLE or "." not in name]
    if not strangers:
        return []
    return [
        Finding(
            "preflight.accepted",
            "error",
            f"preflight_accepted names {', '.join(strangers)}",
            f"Name ids of findings only, which begin with one of: {', '.join(ACCEPTABLE)}",
            "roles/preflight/README.md",
        )
    ]


RULES = (
    accepted,
    architecture,
    distribution,
    systemd,
    glibc,
    python,
    python_headers,
    numa_library,
    gpu,
    driver,
    cpu_engine,
    disk,
    one_mount,
    user,
    port,
    model,
    download,
    hidden,
)


def _unreadable(settings: NodeSettings, files: ModelFiles) -> list[Finding]:
    if not files.obstacles:
        return []
    shown = "; ".join(f"{obstacle.path} ({obstacle.why})" for obstacle in files.obstacles[:3])
    more = f" and {len(files.obstacles) - 3} more" if len(files.obstacles) > 3 else ""
    return [
        Finding(
            "model.unreadable",
            "error",
            f"User {settings.user} cannot read {shown}{more}",
            f"Let {settings.user} read every file and enter every folder on the way, for example: "
            f"chmod -R a+rX {files.path}",
            "https://man7.org/linux/man-pages/man7/path_resolution.7.html",
        )
    ]


def _no_folder(files: ModelFiles) -> Finding:
    return Finding(
        "model.not_a_folder",
        "error",
        f"{files.path} is a file",
        "Set model_weights_path to the folder with config.json, tokenizer and weights",
        "roles/model_weights/README.md",
    )


def _movable(settings: NodeSettings, paths: Sequence[str]) -> str:
    """The settings that say where these folders are."""
    names = ["model_weights_path" if path == settings.model_download else "sglang_root" for path in paths]
    return " or ".join(dict.fromkeys(names))


def _number(version: str, separator: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(separator)[:2])


def _meets(host: str, listening: str) -> bool:
    """Whether binding to ``host`` meets a socket at ``listening``; a name other than localhost may be any address."""
    try:
        wanted = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return True
    there = ipaddress.ip_address(listening)
    return wanted.is_unspecified or there.is_unspecified or wanted == there


def _holder(listener: Listener) -> str:
    if not listener.pid:
        return "a process that could not be seen"
    return f"process {listener.pid} ({listener.command})" + (f" of {listener.unit}" if listener.unit else "")
