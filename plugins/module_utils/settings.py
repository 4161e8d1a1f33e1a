# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the user writes: the roles' variables, judged by name and by value before any node is reached."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

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
    ``p2p_fallback``   whether the instance does without direct access between GPUs
    ``driver_managed``, ``boot_managed``   whether role ``nvidia_driver``, and role ``node_settings`` with leave to
                    write boot parameters, run after the judgement
    ``accepted``       ids of errors about hardware or weights that are told as warnings
    ``gpus``           nvidia-smi's numbers of those that the instance may use; all of them where it is empty
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
    model_waived: tuple[str, ...] = ()
    cuda_home: str = ""
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
                "Give the path on the node, beginning with /; download the model of a hub first",
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
