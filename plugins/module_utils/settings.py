# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the user writes: the roles' variables, judged by name and by value before any node is reached."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

_APT = "https://manpages.debian.org/bookworm/apt/apt_preferences.5.en.html"
_DRIVER = "roles/nvidia_driver/README.md"
_MODPROBE = "modprobe.d(5)"
_NVCC = "https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/"
_SYSCTL_D = "sysctl.d(5)"

Options = Mapping[str, Mapping[str, object]]
"""The options of one role's ``meta/argument_specs.yml``: variable name to ``type``, ``choices``, ``required``, …"""

_MISREAD = {
    "str": ("bool", "float", "list", "dict"),
    "path": ("bool", "float", "list", "dict"),
    "int": ("bool",),
    "list": ("str", "bool", "int", "float"),
    "dict": ("str",),
}


@dataclass(frozen=True)
class NodeSettings:
    """The settings that a node is judged by, named as the module ``preflight`` documents them.

    ``python``      the interpreter that the release is installed with, ``python_version`` what its lock is chosen by;
                    empty where that follows from the node
    ``locks``       digest of the release's lock by Python minor version (``{"3.11": "…"}``)
    ``toolkit``     folder of the CUDA toolkit that will be used, ``toolkit_lock`` the digest of its lock
    ``model``       folder that must be there and readable; empty where a role makes it
    ``unit_paths``  what the instance's unit must reach, by the setting that names it
    ``model_download``, ``model_size_gb``  folder that a role will fetch the model into, and its size if known
    ``cuda_home``   CUDA toolkit that is there and will be used; empty where a role brings it
    ``cuda_version``   that it is to have; empty for the release's
    ``cuda_architecture``   that its proof will be compiled for
    ``p2p_fallback``   whether the instance does without direct access between GPUs
    ``driver_managed``, ``boot_managed``   whether role ``nvidia_driver``, and role ``node_settings`` with leave to
                    write boot parameters, run after the judgement
    ``accepted``       ids of errors about hardware or weights that are told as warnings
    ``gpus``           nvidia-smi's numbers of those that the instance may use; all of them where it is empty
    ``model_wanted``   what it is to be fetched as, as far as the controller knows: keys of ``weights.identity``
    ``model_waived``   ids of findings about the model's files that other settings make void
    """

    release: str
    python: str
    python_version: str
    locks: Mapping[str, str]
    releases_path: str
    cache_path: str
    toolkit: str
    toolkit_lock: str
    instance: str
    host: str
    port: int
    model: str
    user: str
    gpu_required: bool
    cpu_engine: bool
    packages: tuple[str, ...] = ()
    unit_paths: Mapping[str, str] = field(default_factory=dict)
    model_download: str = ""
    model_size_gb: float = 0
    model_wanted: Mapping[str, Any] = field(default_factory=dict)
    model_waived: tuple[str, ...] = ()
    cuda_home: str = ""
    cuda_version: str = ""
    cuda_architecture: str = ""
    p2p_fallback: bool = False
    driver_managed: bool = False
    boot_managed: bool = False
    accepted: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()


def role_of(name: str, roles: Iterable[str]) -> str | None:
    """The role whose prefix a variable carries: the longest that fits (``sglang_server_port``: not ``sglang``)."""
    fitting = [role for role in roles if name.startswith(f"{role}_")]
    return max(fitting, key=len, default=None)


def unknown(specs: Mapping[str, Options], names: Iterable[str]) -> list[Finding]:
    """Judge the names of a host's variables against the roles' argument specs.

    ``specs``  role name to its options
    ``names``  every variable of the host, whoever set it; names that start with ``__`` are internal and free
    """
    owners = {name: role for role, options in specs.items() for name in options}
    known = sorted(owners)
    findings = []
    for name in sorted(set(names).difference(known)):
        if name.startswith(("__", "ansible_")):
            continue
        role = role_of(name, specs)
        if role is not None:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"Rename it to {near[0]}, or remove it" if near else "Remove it"
            findings.append(
                Finding(
                    "settings.unknown",
                    "error",
                    f"{name} carries the prefix of role {role}, but no role knows it",
                    remedy,
                    f"roles/{owners[near[0]] if near else role}/meta/argument_specs.yml",
                )
            )
        elif near := difflib.get_close_matches(name, known, n=1, cutoff=0.9):
            findings.append(
                Finding(
                    "settings.similar",
                    "warning",
                    f"{name} is read by no role, and nearly spells {near[0]}",
                    f"Rename it to {near[0]} if that is what is meant",
                )
            )
    return findings


def type_of(value: object) -> str:
    """The type of a value as argument specs name it; Ansible hands over subclasses with names of their own."""
    names = {bool: "bool", int: "int", float: "float", str: "str", list: "list", tuple: "list", Mapping: "dict"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), type(value).__name__)


def misread(name: str, option: Mapping[str, object], value: object, default: object = None) -> list[Finding]:
    """Judge a value that Ansible's own conversion would quietly take for something else.

    A null passes there as any type, a list, a number or a boolean as ``str``, a boolean as ``int`` (``True`` is 1),
    text as a list or dict. Roles and defaults read what the user wrote, not what the conversion makes of it. A whole
    number as ``str`` reads the same either way; text as ``int`` or ``bool`` is converted where it is read.

    ``default``  the value in the role's ``defaults/main.yml``; a null is wrong only where that is not null, too
    """
    kind = str(option.get("type", "str"))
    source = "ansible.module_utils.common.validation"
    if value is None:
        if option.get("required") or default is not None:
            return [
                Finding(
                    "settings.empty",
                    "error",
                    f"{name} is set to nothing",
                    f"Give it a value of type {kind}, or remove the line",
                )
            ]
        return []
    if type_of(value) in _MISREAD.get(kind, ()):
        return [
            Finding(
                "settings.type",
                "error",
                f"{name} is of type {type_of(value)}",
                f"Give it a value of type {kind}{_spelling(name, kind, value)}",
                source,
            )
        ]
    if kind == "path" and isinstance(value, str) and not value.startswith("/"):
        return [
            Finding(
                "settings.path",
                "error",
                f"{name} is {value!r}, not an absolute path",
                "Give the path on the node, beginning with /",
                "https://man7.org/linux/man-pages/man7/path_resolution.7.html",
            )
        ]
    return []


def _spelling(name: str, kind: str, value: object) -> str:
    """How to write what is meant."""
    if kind in ("str", "path") and isinstance(value, bool | float):
        return ", in quotes"
    example = {"list": '["..", ".."]', "dict": '{"..": ".."}'}.get(kind)
    if example is None:
        return ""
    shape = "list" if kind == "list" else "mapping"
    return f""": a YAML {shape}, or on the command line -e '{{"{name}": {example}}}'"""


@dataclass(frozen=True)
class Form:
    """What the value of one variable must be, beyond its type.

    ``wrong``   what of a value is wrong, as the rest of a sentence after the variable's name; empty where nothing is
    ``remedy``  in the imperative
    ``source``  where that comes from
    """

    wrong: Callable[[Any], str]
    remedy: str
    source: str = ""


def _number(least: float, most: float, unit: str = "", source: str = "") -> Form:
    """From ``least`` to ``most``, both included."""
    remedy = f"Set it to a number from {least} to {most}{unit and ' '}{unit}"
    return Form(lambda value: "" if least <= value <= most else f"is {value}", remedy, source)


def _numbers(least: int, most: int, unit: str, source: str = "") -> Form:
    """A list of such numbers."""

    def wrong(values: Iterable[int]) -> str:
        return next((f"holds {value}" for value in values if not least <= value <= most), "")

    return Form(wrong, f"List numbers from {least} to {most} {unit}", source)


def _text(pattern: str, remedy: str, source: str = "", *, secret: bool = False) -> Form:
    """Text that a pattern describes as a whole, or none. A ``secret`` one is not told."""

    def wrong(value: str) -> str:
        if not value or re.fullmatch(pattern, value, re.ASCII):
            return ""
        return "is of another form" if secret else f"is {value!r}"

    return Form(wrong, remedy, source)


def _texts(pattern: str, remedy: str, source: str = "", *, needed: bool = False) -> Form:
    """A list of such texts; one at least where it is ``needed``."""

    def wrong(values: Iterable[str]) -> str:
        listed = list(values)
        if needed and not listed:
            return "is empty"
        return next((f"holds {value!r}" for value in listed if not re.fullmatch(pattern, str(value), re.ASCII)), "")

    return Form(wrong, remedy, source)


_SYSCTL = r"[A-Za-z0-9_][A-Za-z0-9_:*/-]*([./][A-Za-z0-9_:*/-]+)+"
_NUMBERS_ALONE = re.compile(r"vm[./].*|kernel[./]numa_balancing.*")
"""Sysctls that take numbers alone: the kernel's Documentation/admin-guide/sysctl."""


def _sysctl(values: Mapping[Any, Any]) -> str:
    for name, value in values.items():
        if not isinstance(name, str) or not re.fullmatch(_SYSCTL, name, re.ASCII):
            return f"names {name!r}"
        if value is None:  # leaves one of the role's as it is
            continue
        if type_of(value) not in ("bool", "int", "str") or not re.fullmatch(r"[^\n\r]*\S[^\n\r]*", str(value)):
            return f"gives {name} {_shown(value)}"
        number = isinstance(value, int) or re.fullmatch(r"-?\d+(\s+-?\d+)*", value.strip(), re.ASCII)
        if _NUMBERS_ALONE.fullmatch(name) and not number:
            return f"gives {name} {_shown(value)}, not a number"
    return ""


def _module_options(values: Mapping[Any, Any]) -> str:
    for module, options in values.items():
        if not isinstance(module, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", module, re.ASCII):
            return f"names {module!r}"
        if not isinstance(options, Mapping):
            return f"gives {module} {_shown(options)}"
        for name, value in options.items():
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", name, re.ASCII):
                return f"gives {module} an option {name!r}"
            scalar = type_of(value) in ("bool", "int", "str")
            if not scalar or not re.fullmatch(r"""[^\s"]+|"[^"\n]*"|[^\s"]*"[^"\n]*"[^\s"]*""", str(value)):
                return f"gives {module} {name}={_shown(value)}"
    return ""


def _shown(value: object) -> str:
    return repr(value) if type_of(value) in ("bool", "int", "float", "str") else f"a value of type {type_of(value)}"


_DAY = 86400

VALUES: Mapping[str, Form] = {
    "cuda_repository_key_fingerprints": _texts(
        r"(0[xX])?([0-9A-Fa-f] *){40}|(0[xX])?([0-9A-Fa-f] *){64}",
        "List whole fingerprints, of 40 or 64 hexadecimal digits, with or without spaces",
        "https://evil32.com",
        needed=True,
    ),
    "cuda_repository_priority": _number(1, 999, "(from 1000 on apt would also go back to older packages)", _APT),
    "cuda_repository_proxy": _text(
        r"https?://([^\s/@\"';]+@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?/?",
        "Write it as http://host:port, or leave it empty",
        "apt-transport-http(1)",
        secret=True,
    ),
    "cuda_toolkit_architecture": _text(
        r"[1-9]\d{1,2}[af]?", "Write it as nvcc names it after sm_: 90a, 100f or 120f", _NVCC
    ),
    "model_weights_connections": _number(1, 64),
    "model_weights_seed_port": _number(0, 65535, "(0 takes a free one)"),
    "model_weights_size_gb": _number(0, 100_000, "GB (0 where it is not known)"),
    "model_weights_timeout": _number(1, 30 * _DAY, "s"),
    "nccl_proof_repeats": _number(1, 1000),
    "nccl_proof_sizes": _numbers(4, 1 << 36, "bytes"),
    "nccl_proof_step_timeout": _number(1, _DAY, "s"),
    "nccl_proof_timeout": _number(1, _DAY, "s"),
    "node_settings_acs_bridges": _texts(
        r"([0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]",
        "List PCI addresses as lspci -D shows them, such as 0000:40:01.1",
    ),
    "node_settings_limits": _texts(
        r"[*%]|[@%]?[A-Za-z0-9_.:-]+\$?", "List one name each, such as root, bench or @bench", "limits.conf(5)"
    ),
    "node_settings_module_options": Form(
        _module_options, "Write it as {module: {option: value}}, such as {nvidia_uvm: {uvm_disable_hmm: 1}}", _MODPROBE
    ),
    "node_settings_sysctl": Form(
        _sysctl, "Write it as {name: value}, such as {vm.max_map_count: 1048576}; null leaves the role's", _SYSCTL_D
    ),
    "nvidia_driver_branch": _number(1, 9999, "", _DRIVER),
    "nvidia_driver_power_limit": _number(1, 5000, "W"),
    "nvidia_driver_reboot_timeout": _number(1, _DAY, "s"),
    "nvidia_driver_version": _text(
        r"(\d+:)?\d{3,4}(\.\d+){1,2}(-[A-Za-z0-9.+~]+)?",
        "Write NVIDIA's whole version, as 580.105.08, or leave it empty for any of the branch",
        _DRIVER,
    ),
    "sglang_keep_releases": _number(1, 1000),
}
"""Forms of the roles' variables. Every number is here or in ``ELSEWHERE``, as a test of the argument specs demands."""

ELSEWHERE: Mapping[str, str] = {
    f"sglang_server_{name}": finding
    for finding, names in {
        "gpus.numbers": "gpus",
        "plan.range": "port concurrency tokens_per_request most_ttft most_tpot gpu_count memory_fraction read_rate "
        "start_timeout stop_timeout restart_limit",
        "spelling.range": "tensor_parallel pipeline_parallel expert_parallel attention_data_parallel context_length "
        "max_running_requests micro_batch_size async_depth chunked_prefill_size cuda_graph_max_batch_size",
    }.items()
    for name in names.split()
}
"""Numbers that the plan judges, with the finding: a preset may give them, too. A test gives each an absurd one."""


def judge_value(name: str, value: object) -> list[Finding]:
    """Judge a value of the right type by its variable's entry in ``VALUES``; a null is judged by ``misread``."""
    form = VALUES.get(name)
    if form is None or value is None:
        return []
    wrong = form.wrong(value)
    return [Finding("settings.value", "error", f"{name} {wrong}", form.remedy, form.source)] if wrong else []


def judge_together(values: Mapping[str, Any]) -> list[Finding]:
    """Judge values that do not fit each other. What is of a wrong form itself is not among ``values``."""
    return [finding for rule in TOGETHER for finding in rule(values)]


def _step_in_proof(values: Mapping[str, Any]) -> list[Finding]:
    whole, step = values.get("nccl_proof_timeout"), values.get("nccl_proof_step_timeout")
    if whole is None or step is None or step <= whole:
        return []
    seen = f"nccl_proof_step_timeout is {step}, and nccl_proof_timeout, which is for all steps, {whole}"
    remedy = "Set nccl_proof_step_timeout to no more than nccl_proof_timeout"
    return [Finding("settings.value", "error", seen, remedy, "roles/nccl_proof/README.md")]


def _version_of_branch(values: Mapping[str, Any]) -> list[Finding]:
    branch, version = values.get("nvidia_driver_branch"), values.get("nvidia_driver_version")
    if branch is None or not version or re.match(rf"(\d+:)?{branch}\.", version):
        return []
    seen = f"nvidia_driver_version is {version!r}, and nvidia_driver_branch {branch}"
    remedy = "Set nvidia_driver_version to one of the branch, or leave it empty"
    return [Finding("settings.value", "error", seen, remedy, _DRIVER)]


TOGETHER = (_step_in_proof, _version_of_branch)
