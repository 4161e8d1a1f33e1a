# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a CUDA toolkit can compile a release's kernels: judged by settings, and on a node by its folder."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import apt, releases
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

WHEELS, APT, EXISTING = "wheels", "apt", "existing"

SM120 = (12, 9)
"""The oldest CUDA that FlashInfer compiles for SM 12.x with (0.6.11.post1: flashinfer-ai/flashinfer#3675)."""

# What kernels include and link to: FlashInfer's build links cudart and cuda, others cuBLAS, cuRAND and NVRTC.
NEEDED = (
    "include/cuda_runtime.h",
    "include/cublas_v2.h",
    "include/curand_kernel.h",
    "include/nvrtc.h",
    "lib64/libcudart.so",
    "lib64/libcudart_static.a",
    "lib64/libcublas.so",
    "lib64/libnvrtc.so",
    "lib64/stubs/libcuda.so",
)

_CONTRACT = "roles/cuda_toolkit/README.md"
_COHERENT = "flashinfer-ai/flashinfer#3493"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the settings ask for.

    ``method``           ``wheels``, ``apt`` or ``existing``
    ``version``          CUDA version, ``major.minor``
    ``torch``            CUDA version of the release's PyTorch; empty where the release is not known
    ``path``             the folder of manifest and proof, which is ours
    ``home``             the ``CUDA_HOME``
    ``packages``         Debian packages, each by name or as ``name=version``
    ``package_version``  exact version of ``cuda-toolkit-<major>-<minor>``; empty for the newest of the minor version
    ``repository``       URL of the packages' source
    ``architecture``     that the proof is compiled for (``120f``)
    """

    method: str
    version: str
    torch: str = ""
    path: str = ""
    home: str = ""
    packages: tuple[str, ...] = ()
    package_version: str = ""
    repository: str = ""
    architecture: str = "120f"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A toolkit's folder as it lies on a node.

    ``target``      where its path leads, links resolved
    ``nvcc``        exact version of its compiler (``13.0.88``); empty where none answers, and ``complaint`` why not
    ``headers``     CUDA version of its headers (``13.0``); empty where there are none
    ``missing``     files of ``NEEDED`` that are not there
    ``unreadable``  what the service user may not read or run: the first few paths
    ``writable``    what others than root and that user may write: the first few paths
    """

    target: str
    nvcc: str = ""
    complaint: str = ""
    headers: str = ""
    missing: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


def wanted(values: Mapping[str, Any], torch: str = "") -> Wanted | None:
    """What a host's settings ask for; None where one of them could not be evaluated, which is told by itself."""
    given = {
        name: values.get(f"cuda_toolkit_{name}") for name in ("method", "version", "package_version", "architecture")
    }
    if None in given.values():
        return None
    # The folders cannot be evaluated for a version that there is not.
    folders = {name: str(values.get(f"cuda_toolkit_{name}") or "") for name in ("path", "home")}
    packages = tuple(map(str, values.get("cuda_toolkit_packages") or ()))
    texts = {name: str(value) for name, value in given.items()} | folders
    return Wanted(**texts, packages=packages, torch=torch, repository=str(values.get("cuda_repository_url") or ""))


def judge(wanted: Wanted, tree: Tree | None = None) -> list[Finding]:
    """All findings: of the settings alone on the controller, of the folder, too, with its ``tree``."""
    return [finding for rule in RULES for finding in rule(wanted, tree)]


def version(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """One that can be had. Source: the locks of ``roles/cuda_toolkit/files/locks``, the names of NVIDIA's packages."""
    if wanted.method == WHEELS and wanted.version not in releases.TOOLKITS:
        remedy = f"Set cuda_toolkit_version to one of: {', '.join(releases.TOOLKITS)}"
        seen = f"CUDA {wanted.version} is not among the toolkits of this collection"
        return [_error("unknown", seen, remedy, "plugins/module_utils/releases.py")]
    if not re.fullmatch(r"\d+\.\d+", wanted.version):
        return [_error("unknown", f"cuda_toolkit_version is {wanted.version!r}", "Write it as major.minor, as in 13.0")]
    return []


def torch(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """PyTorch's extensions refuse another major version, and its headers an older compiler. Field case C09."""
    had = ".".join(tree.nvcc.split(".")[:2]) if tree else wanted.version
    if not wanted.torch or not had or had == wanted.torch or (tree is None and version(wanted, tree)):
        return []
    if _number(had)[0] == _number(wanted.torch)[0] and _number(had) > _number(wanted.torch):
        seen = f"The toolkit is CUDA {had}; torch is {wanted.torch}: kernels compile against newer headers than torch's"
        remedy = f"Set cuda_toolkit_version to {wanted.torch}, which is proven, unless this one is needed"
        return [Finding("toolkit.torch", "warning", seen, remedy, _COHERENT)]
    seen = f"CUDA_HOME resolves to {had}" if tree else f"cuda_toolkit_version is {had}"
    seen += f"; torch is {wanted.torch}"
    if wanted.architecture.startswith("12") and _number(had) < SM120:
        seen += f"; SM120 JIT needs >= {SM120[0]}.{SM120[1]}"
    remedy = f"Use a toolkit of CUDA {wanted.torch}" + (", by cuda_toolkit_home" if tree else "")
    return [_error("torch", seen, remedy, "flashinfer-ai/flashinfer#3675")]


def driver(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """No package that brings a driver with it. Field case C02: canonical/checkbox#749."""
    return [] if tree else apt.judge(apt.Installation(wanted.packages))


def repository(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """Packages come from a source that has one owner. Source: ``roles/cuda_repository``."""
    return apt.judge_url(wanted.repository) if wanted.method == APT and tree is None else []


def package(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """Packages of the version that is asked for. Source: the names of NVIDIA's packages."""
    if wanted.method != APT or tree is not None or version(wanted, tree):  # with a tree, they are installed
        return []
    found = []
    suffix = toolkit_package(wanted.version).removeprefix("cuda-toolkit")
    for name in apt.Installation(wanted.packages).names:
        minor = re.search(r"-\d+-\d+$", name)
        if name.startswith("cuda-") and minor and minor[0] != suffix:
            seen = f"cuda_toolkit_packages names {name}, and cuda_toolkit_version is {wanted.version}"
            found.append(_error("package", seen, "Name packages of one version: nvcc refuses other headers", _COHERENT))
    if not wanted.packages:
        found.append(_error("package", "cuda_toolkit_packages is empty", f"Name {toolkit_package(wanted.version)}"))
    if wanted.package_version and not re.fullmatch(
        rf"{re.escape(wanted.version)}\.[\w.+~-]+", wanted.package_version, re.ASCII
    ):
        seen = f"cuda_toolkit_package_version is {wanted.package_version!r}, and cuda_toolkit_version {wanted.version}"
        remedy = (
            f"Give a version as apt-cache policy {toolkit_package(wanted.version)} shows it, or none for the newest"
        )
        found.append(_error("package", seen, remedy))
    return found


def home(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """A method that makes the toolkit says where it lies. Source: the layout of NVIDIA's wheels and packages."""
    expected = {WHEELS: f"{wanted.path}/nvidia/cu13", APT: apt_home(wanted.version)}.get(wanted.method, wanted.home)
    if wanted.home in (expected, ""):
        return []
    seen = f"cuda_toolkit_home is {wanted.home}, and the method {wanted.method} makes {expected}"
    return [_error("home", seen, "Set cuda_toolkit_method to existing, or leave cuda_toolkit_home out")]


def link(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """A link may lead to another version after any installation of a package. Field case C09."""
    if tree is None or tree.target == wanted.home:
        return []
    seen = f"{wanted.home} is, or lies behind, a link to {tree.target}, which a package may turn to another version"
    return [_error("link", seen, "Set cuda_toolkit_home to the real folder of the version, as /usr/local/cuda-13.0")]


def compiler(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """The compiler answers, and is of the version that is asked for."""
    if tree is None:
        return []
    if not tree.nvcc:
        seen = f"{wanted.home}/bin/nvcc does not answer" + (f": {tree.complaint}" if tree.complaint else "")
        return [
            _error("missing", seen, f"Put a CUDA {wanted.version} toolkit there, or use another cuda_toolkit_method")
        ]
    if tree.nvcc.startswith(f"{wanted.version}."):
        return []
    seen = f"{wanted.home}/bin/nvcc is {tree.nvcc}, and cuda_toolkit_version {wanted.version}"
    return [_error("version", seen, "Correct cuda_toolkit_version, or name the folder of that version")]


def headers(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """CUDA's headers refuse a compiler of another minor version. Source: flashinfer-ai/flashinfer#3493."""
    if tree is None or not tree.nvcc or tree.nvcc.startswith(f"{tree.headers}."):
        return []
    seen = f"nvcc of {wanted.home} is {tree.nvcc}, and its headers are {tree.headers or 'not there'}"
    return [_error("mixed", seen, "Install compiler and headers of one minor version", _COHERENT)]


def complete(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """Kernels are compiled and linked in it. Source: the link line of flashinfer/jit/cpp_ext.py."""
    if tree is None or not tree.nvcc or not tree.missing:
        return []
    seen = f"{wanted.home} lacks {', '.join(tree.missing)}"
    return [_error("incomplete", seen, f"Install the rest of the toolkit: package {toolkit_package(wanted.version)}")]


def readable(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """The engine compiles as its own user."""
    if tree is None or not tree.unreadable:
        return []
    seen = f"The service user may not read or run {', '.join(tree.unreadable)}"
    return [_error("unreadable", seen, f"Run chmod -R a+rX {wanted.home}, or open the folders above it")]


def trusted(wanted: Wanted, tree: Tree | None) -> list[Finding]:
    """What it compiles runs as the service user: nobody else may change it."""
    if tree is None or not tree.writable:
        return []
    seen = f"Others than root and the service user may write {', '.join(tree.writable)}"
    return [_error("writable", seen, f"Give {wanted.home} to root and run chmod -R go-w on it", _CONTRACT)]


RULES = (version, torch, driver, repository, package, home, link, compiler, headers, complete, readable, trusted)


def toolkit_package(version: str) -> str:
    """The metapackage of NVIDIA's that is a toolkit and brings no driver."""
    return f"cuda-toolkit-{version.replace('.', '-')}"


def apt_home(version: str) -> str:
    """Where NVIDIA's packages of a CUDA version lie."""
    return f"/usr/local/cuda-{version}"


def headers_version(home: Path) -> str:
    """CUDA version of a toolkit's headers (``13.0``), from ``CUDART_VERSION`` (13000); empty where there is none."""
    try:
        text = (home / "include/cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"^#define\s+CUDART_VERSION\s+(\d+)", text, re.MULTILINE)
    return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}" if found else ""


def nvcc_version(output: str) -> str:
    """Exact version that ``nvcc --version`` tells (``release 13.0, V13.0.88``); empty where it tells none."""
    found = re.search(r"\brelease \d+\.\d+, V(\d+(?:\.\d+)+)", output)
    return found[1] if found else ""


def obstacles(home: Path, uid: int, gids: Collection[int], most: int = 3) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of a toolkit: what a user may not read or run, and what others than root and that user may write; a few of each.

    By owner, group and mode, of the folder, what is below it, and the folders above it.
    """
    unreadable: list[str] = []
    writable: list[str] = []
    for path in (*home.parents, *_below(home)):
        try:
            status = path.stat()
        except OSError:  # a link to nothing, as packages leave them for parts that are not installed
            continue
        if stat.S_ISDIR(status.st_mode):
            need = 0o5 if path == home or home in path.parents else 0o1
        else:
            need = 0o5 if path.parent.name == "bin" and status.st_mode & 0o111 else 0o4
        if uid != 0 and _allowed(status, uid, gids) & need != need:
            unreadable.append(str(path))
        foreign = status.st_uid not in (0, uid) or status.st_mode & 0o022
        if foreign and (path == home or home in path.parents):
            writable.append(str(path))
    return tuple(unreadable[:most]), tuple(writable[:most])


def _below(home: Path) -> Iterator[Path]:
    for folder, _folders, names in os.walk(home):
        yield Path(folder)
        yield from (Path(folder, name) for name in names)


def _allowed(status: os.stat_result, uid: int, gids: Collection[int]) -> int:
    if status.st_uid == uid:
        return status.st_mode >> 6 & 0o7
    if status.st_gid in gids:
        return status.st_mode >> 3 & 0o7
    return status.st_mode & 0o7


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))[:2]


def _error(fault: str, seen: str, remedy: str, source: str = _CONTRACT) -> Finding:
    return Finding(f"toolkit.{fault}", "error", seen, remedy, source)
