# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What role node_settings sets on a node beside the command line: what holds now, and what still lacks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.inference.sglang.plugins.module_utils import probes, readings
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

PERSISTENCED = "nvidia-persistenced.service"
PERSISTENCE = "https://docs.nvidia.com/deploy/driver-persistence/persistence-daemon.html"
HMM = "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1223"
_TRUTH = {"Y": "1", "N": "0"}  # how the kernel shows a parameter of type bool


@dataclass(frozen=True, kw_only=True)
class State:
    """What holds on a node.

    ``container``     systemd's name of its kind; empty on a machine
    ``sysctl``        by asked name; None for one that this kernel has not
    ``hugepages``     policy of transparent huge pages; empty for a kernel without
    ``options``       of asked modules that are loaded, by module, as the kernel shows them
    ``gpus``          whether an NVIDIA GPU is on the bus, ``driver`` whether its driver is loaded
    ``persistenced``  what nvidia-persistenced's unit starts; empty where there is none
    ``running``       what runs of it; empty where nothing does
    """

    container: str = ""
    sysctl: Mapping[str, str | None] = field(default_factory=dict)
    hugepages: str = ""
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpus: bool = False
    driver: bool = False
    persistenced: str = ""
    running: str = ""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """``options``: of modules, by module. ``persistence``: whether GPUs are to stay initialised."""

    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    persistence: bool = False


def read(names: Sequence[str], modules: Sequence[str], ask: probes.Ask = probes.ask, root: Path = Path("/")) -> State:
    """Read a node. ``names``: of sysctls, ``modules``: of the kernel's."""
    shown = ""
    with contextlib.suppress(FileNotFoundError):  # no systemd
        shown = ask("systemctl", "show", "--property=ExecStart", PERSISTENCED)[0]
    policy = re.search(r"\[(\w+)\]", probes.word(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    return State(
        container=readings.container(root),
        sysctl={name: _sysctl(root, name) for name in names},
        hugepages=policy[1] if policy else "",
        options={name: found for name in modules if (found := _options(root, name)) is not None},
        gpus=bool(readings.gpus([], root)),
        driver=(root / "sys/module/nvidia").is_dir(),
        persistenced=_starts(shown),
        running=_running(root),
    )


def _sysctl(root: Path, name: str) -> str | None:
    """Of several numbers in one value, the kernel separates them by tabs."""
    path = root / "proc/sys" / name.replace(".", "/")
    return " ".join(probes.text(path).split()) if path.is_file() else None


def _options(root: Path, module: str) -> dict[str, str] | None:
    """Those of a loaded module. The module nvidia shows its own in /proc, without their prefix."""
    folder = root / "sys/module" / module
    if not folder.is_dir():
        return None
    found = {name: probes.word(folder / "parameters" / name) for name in probes.entries(folder / "parameters")}
    if module == "nvidia":
        for line in probes.text(root / "proc/driver/nvidia/params").splitlines():
            name, _colon, value = line.partition(":")
            found[f"NVreg_{name}"] = value.strip().strip('"')
    return found


def _starts(shown: str) -> str:
    """The command in systemctl's ``ExecStart={ path=… ; argv[]=… ; …}``."""
    match = re.search(r"argv\[\]=(.*?) ;", shown)
    return match[1] if match else ""


def _running(root: Path) -> str:
    for name in probes.entries(root / "proc"):
        # The kernel keeps 15 characters of a command's name.
        if name.isdecimal() and probes.word(root / "proc" / name / "comm") == "nvidia-persiste":
            return probes.data(root / "proc" / name / "cmdline", 1 << 12).replace(b"\0", b" ").decode().strip()
    return ""


def text_of(value: object) -> str:
    """A value as the kernel takes it, however YAML read it."""
    return str(int(value)) if isinstance(value, bool) else " ".join(str(value).split())


def differing(state: State, values: Mapping[str, object]) -> list[str]:
    """Names of the sysctls that have another value now; not those that this kernel does not know."""
    return [
        name
        for name, value in values.items()
        if state.sysctl.get(name) is not None and state.sysctl[name] != text_of(value)
    ]


def persistent(command: str) -> str:
    """The daemon's command with persistence mode.

    Ubuntu's packages start it with ``--no-persistence-mode``: it runs, and lets the GPUs go all the same.
    """
    words = [word for word in command.split() if word not in ("--no-persistence-mode", "--persistence-mode")]
    return " ".join([*words, "--persistence-mode"]) if words else ""


def _in_container(state: State, wanted: Wanted) -> list[Finding]:
    if not state.container:
        return []
    return [
        Finding(
            "node_settings.container",
            "info",
            f"The node is a container ({state.container}): kernel, limits and boot are its host's, and were left alone",
            "Run role node_settings on the host",
            "systemd-detect-virt(1)",
        )
    ]


def _options_pending(state: State, wanted: Wanted) -> list[Finding]:
    if state.container:
        return []
    pending = [
        f"{module} {name}={state.options[module][name]}, not {value}"
        for module, options in wanted.options.items()
        for name, value in options.items()
        if (shown := state.options.get(module, {}).get(name)) is not None and _TRUTH.get(shown, shown) != value
    ]
    if not pending:
        return []
    return [
        Finding(
            "node_settings.reboot_pending",
            "warning",
            f"Loaded modules have other options than they will have: {'; '.join(pending)}",
            "Reboot the node when no instance is needed, after update-initramfs -u if the initramfs loads the module",
            HMM,
        )
    ]


def _no_persistence(state: State, wanted: Wanted) -> list[Finding]:
    if state.container or not wanted.persistence or not state.gpus or state.persistenced:
        return []
    return [
        Finding(
            "node_settings.no_persistenced",
            "warning",
            f"The node has a GPU and no {PERSISTENCED}: a GPU that nothing uses is initialised anew, in seconds",
            "Install the package of the driver that has nvidia-persistenced (nvidia-persistenced, or "
            "nvidia-compute-utils of the branch)",
            PERSISTENCE,
        )
    ]


RULES = (_in_container, _options_pending, _no_persistence)


def judge(state: State, wanted: Wanted) -> list[Finding]:
    return [finding for rule in RULES for finding in rule(state, wanted)]
