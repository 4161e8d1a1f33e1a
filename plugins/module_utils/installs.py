# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An installed release: its folder's name, and whether what lies there is what the lock promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import flag_sources, patches, wheels
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable

# Debian's package of a library that the role's import asks for.
_PACKAGES = {"libnuma.so.1": "libnuma1"}

# Of another version than FlashInfer itself they stop its import, and pip leaves them behind (sgl-project/sglang#37377).
_FLASHINFER_COMPANIONS = ("flashinfer-cubin", "flashinfer-jit-cache")
_MOST_NAMED = 5


def name(version: str, lock: str, patch_set: Sequence[patches.Patch]) -> str:
    """Name of the release's folder, ``<version>-<lock>-<patches>``: other content, other folder."""
    return f"{version}-{wheels.digest(lock)}-{patches.digest(patch_set, version)}"


def site_packages(folder: str, python: str) -> Path:
    """Where the release's distributions lie; ``python`` is a minor version such as ``3.11``."""
    return Path(folder) / "lib" / f"python{python}" / "site-packages"


def judge(report: Mapping[str, Any], lock: str, version: str, cuda: str) -> list[Finding]:
    """Compare what ``roles/sglang/files/import_release.py`` reported with the lock.

    ``version`` is SGLang's, ``cuda`` the CUDA version that its PyTorch must be built for (``13.0``).
    """
    locked, found = wheels.pins(lock), report["versions"]
    findings = []
    wrong = [
        f"{dist} is {found.get(dist, 'absent')}, locked {pin}" for dist, pin in locked.items() if found.get(dist) != pin
    ]
    if wrong:
        findings.append(
            Finding(
                "release.versions", "error", "; ".join(wrong[:_MOST_NAMED]), "Remove the release's folder and run again"
            )
        )
    if found.get("sglang") != version:
        findings.append(
            Finding(
                "release.sglang", "error", f"SGLang is {found.get('sglang')}, wanted {version}", "Make the lock again"
            )
        )
    if report["torch_cuda"] != cuda:
        findings.append(
            Finding(
                "release.cuda",
                "error",
                f"PyTorch is built for CUDA {report['torch_cuda']}, the release needs {cuda}",
                "Make the lock again from an index that serves PyTorch for CUDA 13",
                "sgl-project/sglang#18392",
            )
        )
    flashinfer = found.get("flashinfer-python")
    for companion in _FLASHINFER_COMPANIONS:
        # The kernels compiled ahead carry the CUDA version as well: 0.6.11+cu130.
        if companion in found and found[companion].partition("+")[0] != flashinfer:
            findings.append(
                Finding(
                    "release.flashinfer_companion",
                    "error",
                    f"{companion} {found[companion]} lies beside flashinfer-python {flashinfer}",
                    "Remove the release's folder and run again",
                    "sgl-project/sglang#37377",
                )
            )
    if strange := [f"{dist} {version}" for dist, version in sorted(found.items()) if dist not in locked]:
        findings.append(
            Finding(
                "release.unlocked",
                "error",
                f"The lock does not hold {', '.join(strange[:_MOST_NAMED])}, and the release does",
                "Remove the release's folder and run again; nothing else installs into it",
                "sgl-project/sglang#37377",
            )
        )
    if not report["header_exists"]:
        header = report["header"]
        # Debian's interpreters have their headers in /usr/include/python3.12, from the package python3.12-dev.
        package = f"{Path(header).parent.name}-dev" if header.startswith("/usr/include/") else ""
        findings.append(
            Finding(
                "release.python_header",
                "error",
                f"{header} is missing; Triton compiles against it at the first request",
                f"Add {package} to uv_packages" if package else "Install that Python with its headers",
                "sgl-project/sglang#18644",
            )
        )
    for library in report["missing_libraries"]:
        findings.append(
            Finding(
                "release.system_library",
                "error",
                f"{library} is not on the node; the engine's kernels link to it, and no wheel brings it",
                f"Add {_PACKAGES.get(library, 'its package')} to uv_packages",
                "odysseus-dev/odysseus#6257",
            )
        )
    return findings


def judge_flags(found: FlagTable, shipped: FlagTable, where: str) -> list[Finding]:
    """Compare the flags of an installed release, read ``where``, with the table that judged the user's settings."""
    differences = flag_sources.differences(found, shipped)
    if not differences:
        return []
    more = f" and {len(differences) - _MOST_NAMED} more" if len(differences) > _MOST_NAMED else ""
    return [
        Finding(
            "release.flags",
            "error",
            f"{where} and the shipped flag table differ: {'; '.join(differences[:_MOST_NAMED])}{more}",
            "Remove the release's folder and run again. A patch must leave the flags as they are",
            "roles/sglang/files/flags",
        )
    ]
