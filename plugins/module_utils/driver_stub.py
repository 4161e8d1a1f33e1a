# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for NVIDIA's libcuda.so.1 whose every function answers "no device".

With it the CUDA builds of PyTorch and SGLang's kernels load on a node without a driver. It must never meet a real one.
"""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.toolkits import compile_library, run_tool

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE

# The libraries of a release that are linked against the driver.
_LINKED = (
    "sgl_kernel/sm100/common_ops.abi3.so",
    "sgl_kernel/flash_ops.abi3.so",
    "torch/lib/libtorch_cuda.so",
    "torch/lib/libc10_cuda.so",
)


def driver(root: Path = Path("/")) -> str:
    """What shows that a node has NVIDIA's driver, or an empty string."""
    for sign in ("proc/driver/nvidia/version", "dev/nvidiactl", "usr/lib/x86_64-linux-gnu/libcuda.so.1"):
        if (root / sign).exists():
            return f"/{sign}"
    return ""


def refuse_driver(sign: str) -> Finding:
    """The finding for a node that has a driver: ``sign`` is what showed it."""
    return Finding(
        "cpu_engine.driver",
        "error",
        f"{sign} shows an NVIDIA driver, and the CPU engine replaces the driver's library",
        "Set cpu_engine_enabled to false on this node",
        "roles/cpu_engine/README.md",
    )


def symbols(site_packages: Path) -> list[str]:
    """Names of the driver functions that the release's libraries want, sorted. Raises InstallError."""
    names: set[str] = set()
    for library in _LINKED:
        nm = ["nm", "--dynamic", "--undefined-only", str(site_packages / library)]
        names.update(re.findall(r"\b(cu[A-Z]\w*)", run_tool(nm, f"nm cannot read {library} of the release")))
    return sorted(names)


def build(site_packages: Path, folder: Path) -> None:
    """Write ``libcuda.so.1`` into ``folder``. Raises InstallError."""
    folder.mkdir(parents=True, exist_ok=True)
    source = "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in symbols(site_packages))
    temporary = folder / ".libcuda.so.1"
    compile_library(source, temporary, "libcuda.so.1")
    temporary.replace(folder / "libcuda.so.1")
