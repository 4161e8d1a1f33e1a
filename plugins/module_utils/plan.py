# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The plan of an instance: its command, its environment and what identifies them."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import (
    audit,
    credentials,
    flags,
    spellings,
    units,
    weights,
    wheels,
)
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.models import Shape
from ansible_collections.inference.sglang.plugins.module_utils.settings import type_of

# The running process carries the plan's digest in this variable, so that a unit newer than its process is noticed.
DIGEST_VARIABLE = "SGLANG_PLAN_DIGEST"

# What the roles' variables have before the name of a setting.
PREFIX = "sglang_server_"

LEAST_START = 1800
"""Seconds that a start may take at least: kernels are compiled at a first one."""

MOST_START = 86400
"""Seconds that a start may take at most: one that takes a day hangs."""

READ_RATE = 1000.0
"""MB/s of reading weights that is taken where nobody measured: a slow NVMe, or a good network."""

# Written as flags by the plan itself; the setting that each of them comes from.
_OWN_FLAGS = {
    "model-path": "sglang_server_model_path",
    "served-model-name": "sglang_server_served_name",
    "host": "sglang_server_host",
    "port": "sglang_server_port",
}


@dataclass(frozen=True)
class Settings:
    """What the user wrote, and where the earlier roles put things on the node.

    ``bin_path``       folder of the programs that a unit starts with
    ``jit_cache``      folder of compiled kernels, inside the unit's CacheDirectory
    ``cuda_arch``      what FlashInfer compiles for (``12.0f``)
    ``flags``          exact SGLang flags
    ``environment``    variables that win over the plan's own
    ``start_timeout``  seconds within which the instance must answer; None only until ``start_timeout`` tells
    ``stop_timeout``   seconds that requests in flight have at a stop
    ``restart_limit``  how often a failing engine is started before systemd gives up
    ``serving``        settings that mean the same in every release (``spellings`` room), name to value
    ``fetched``        whether a role fetches the model, which is whole when its manifest is there
    ``keyed``          whether clients must send a key, which stands in ``secrets`` of the plan
    """

    name: str
    user: str
    bin_path: str
    release_path: str
    cuda_home: str
    jit_cache: str
    cuda_arch: str
    model_path: str
    served_name: str
    host: str
    port: int
    flags: Mapping[str, object]
    environment: Mapping[str, object]
    start_timeout: int | None
    stop_timeout: int
    restart_limit: int
    serving: Mapping[str, object] = field(default_factory=dict)
    keyed: bool = False
    fetched: bool = False


def environment(settings: Settings) -> dict[str, str]:
    """Environment of the instance and of whatever compiles kernels for it: one toolkit, and caches that it may write.

    systemd gives a unit neither a home nor the toolkit's folder on the PATH (shared caches: facts on FlashInfer,
    tvm-ffi, Triton and inductor in docs/architecture.md).
    """
    cache = settings.jit_cache
    paths = (f"{settings.release_path}/bin", f"{settings.cuda_home}/bin")
    values = {
        "PATH": ":".join((*paths, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")),
        "HOME": cache,
        "XDG_CACHE_HOME": f"{cache}/xdg",
        "CUDA_HOME": settings.cuda_home,
        "CUDA_CACHE_PATH": f"{cache}/cuda",
        "FLASHINFER_CUDA_ARCH_LIST": settings.cuda_arch,
        "FLASHINFER_WORKSPACE_BASE": cache,
        "HF_HOME": f"{cache}/huggingface",
        "HF_HUB_OFFLINE": "1",
        "SGLANG_CACHE_DIR": f"{cache}/sglang",
        "SGLANG_DG_CACHE_DIR": f"{cache}/deep_gemm",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TVM_FFI_CACHE_DIR": f"{cache}/tvm-ffi",
    }
    values.update((name, str(value)) for name, value in settings.environment.items())
    return values


def check(settings: Settings, table: flags.FlagTable) -> list[Finding]:
    """Judge what the user wrote against the release's flag table and this collection's own promises."""
    findings = [
        *flags.check(settings.flags, table),
        *spellings.check(settings.serving, settings.flags, table, PREFIX),
        *_out_of_range(settings),
        *audit.unwritable(settings.environment, settings.jit_cache),
    ]
    for spelling in settings.flags:
        flag = table.get("--" + str(spelling).strip().lstrip("-"))
        if flag and (own := _OWN_FLAGS.get(flag.name.removeprefix("--"))):
            findings.append(
                Finding("plan.own_flag", "error", f"{spelling} is given as a flag", f"Use the setting {own} instead")
            )
        if flag and flag.name == "--config" and settings.keyed:
            seen = f"{spelling} is given as a flag, and SGLang takes one file: that with the API key"
            findings.append(Finding("plan.own_flag", "error", seen, "Give its content as settings and flags instead"))
    for name, value in settings.environment.items():
        if credentials.is_secret(str(name)):
            findings.append(
                Finding(
                    "plan.secret",
                    "error",
                    f"{name} in the instance's environment would stand in a unit that everybody on the node can read",
                    "Put it into a file of mode 0600 and name that by EnvironmentFile= in a drop-in of the unit",
                    "systemd.exec(5)",
                )
            )
        elif isinstance(value, bool) or not isinstance(value, str | int | float):
            findings.append(
                Finding(
                    "plan.environment",
                    "error",
                    f"{name} in the instance's environment is of type {type_of(value)}",
                    "Give it text or a number; quote it in YAML if the text is meant",
                )
            )
        else:
            try:
                units.quote_environment(str(name), str(value))
            except ValueError as fault:
                findings.append(
                    Finding(
                        "plan.environment",
                        "error",
                        f"{name!r} in the instance's environment cannot stand in a unit: {fault}".rstrip("."),
                        "Correct the name or the value",
                        "systemd.exec(5)",
                    )
                )
    if not _is_loopback(settings.host) and not settings.keyed:
        findings.append(
            Finding(
                "plan.exposed",
                "error",
                f"sglang_server_host is {settings.host}: whoever reaches it could use the engine without a key",
                "Set sglang_server_api_key, from Ansible Vault; or keep 127.0.0.1",
                "docs/architecture.md",
            )
        )
    return findings


def make(settings: Settings, table: flags.FlagTable) -> dict[str, Any]:
    """The plan, as the unit's template and ``plan.json`` take it; ``check`` must have found no error.

    ``command``      program and fixed arguments
    ``arguments``    one list a flag, in the order of the unit
    ``environment``  variable -> value, with the plan's digest
    """
    given = {
        "model-path": settings.model_path,
        "served-model-name": settings.served_name,
        "host": settings.host,
        "port": settings.port,
        **spellings.spell(settings.serving, table),
        **settings.flags,
    }
    patience = settings.start_timeout or LEAST_START
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    secrets = f"/etc/sglang/{settings.name}/secrets.yml" if settings.keyed else ""
    plan: dict[str, Any] = {
        "name": settings.name,
        "user": settings.user,
        "bin_path": settings.bin_path,
        "release_path": settings.release_path,
        "cuda_home": settings.cuda_home,
        "jit_cache": settings.jit_cache,
        "model_path": settings.model_path,
        "served_name": settings.served_name,
        "url": f"http://{host}:{settings.port}",
        "command": [f"{settings.release_path}/bin/python", "-m", "sglang.launch_server"],
        "arguments": flags.arguments(given, table) + ([["--config", secrets]] if secrets else []),
        "environment": environment(settings),
        "start_timeout": patience,
        "stop_timeout": settings.stop_timeout,
        "secrets": secrets,
        "asserted_paths": [f"{settings.model_path}/{weights.OWN}/{wheels.MANIFEST}"] if settings.fetched else [],
        "restart_limit": settings.restart_limit,
        # Long enough that starts which hang until they are ended count as well; 10 is the unit's RestartSec.
        "restart_interval": settings.restart_limit * (patience + settings.stop_timeout + 10),
    }
    content = json.dumps(plan, sort_keys=True).encode()
    plan["digest"] = hashlib.sha256(content).hexdigest()[:12]
    plan["environment"][DIGEST_VARIABLE] = plan["digest"]
    return plan


def start_timeout(shape: Shape | None, read_rate: float | None) -> int:
    """Seconds that a start may take: three times the reading of the weights, half an hour at least (field case C20).

    ``read_rate``  MB/s; ``READ_RATE`` where nobody measured
    """
    if shape is None:
        return LEAST_START
    return min(max(LEAST_START, math.ceil(3 * shape.size.bytes / 1e6 / (read_rate or READ_RATE))), MOST_START)


def as_user(user: str) -> list[str]:
    """What to put before a command to run it as the unit does: its user, the group of that name, the user's others."""
    return ["setpriv", "--reuid", user, "--regid", user, "--init-groups"]


def _out_of_range(settings: Settings) -> list[Finding]:
    """Values of the right type that no instance can have."""
    findings = []
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", settings.name):
        findings.append(
            Finding(
                "plan.name",
                "error",
                f"sglang_server_name is {settings.name!r}, and names a unit and a folder",
                "Use letters, digits, dots, dashes and underscores, 64 at most, a letter or digit first",
            )
        )
    if settings.user == "root" or not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", settings.user):
        findings.append(
            Finding("plan.user", "error", f"sglang_user is {settings.user!r}", "Name a user for the engine alone")
        )
    paths = {
        "sglang_root": settings.bin_path,
        "sglang_release_path": settings.release_path,
        "cuda_toolkit_home": settings.cuda_home,
        "flashinfer_cache_path": settings.jit_cache,
        "sglang_server_model_path": settings.model_path,
    }
    for name, path in paths.items():
        if not re.fullmatch(r"/[^\s:%\"'\\]*", path) or ".." in path.split("/"):
            findings.append(
                Finding(
                    "plan.path",
                    "error",
                    f"{name} is {path!r}",
                    "Give a path from the root, without spaces, quotes, colons, percent signs or ..",
                )
            )
    if not settings.jit_cache.startswith("/var/cache/"):
        findings.append(
            Finding(
                "plan.cache",
                "error",
                f"flashinfer_cache_path is {settings.jit_cache!r}, and systemd makes it as the unit's CacheDirectory",
                "Name a folder below /var/cache",
                "systemd.exec(5)",
            )
        )
    ranges = {
        "sglang_server_port": (settings.port, 1, 65535),
        "sglang_server_start_timeout": (settings.start_timeout, 1, MOST_START),
        "sglang_server_stop_timeout": (settings.stop_timeout, 1, 86400),
        "sglang_server_restart_limit": (settings.restart_limit, 1, 1000),
    }
    for name, (value, least, most) in ranges.items():
        if value is not None and not least <= value <= most:
            findings.append(
                Finding("plan.range", "error", f"{name} is {value}", f"Set it to a number from {least} to {most}")
            )
    return findings


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
