# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compile kernels ahead of the first request and print their libraries as one line of JSON.

``norm`` is a FlashInfer module, ``activation(bfloat16)`` a kernel of SGLang's own with its template arguments.

Runs in the release's own interpreter and in the unit's environment: the toolkit is CUDA_HOME, the architectures are
FLASHINFER_CUDA_ARCH_LIST, the caches are FLASHINFER_WORKSPACE_BASE, and TVM_FFI_CACHE_DIR up to SGLang 0.5.17, then
SGLANG_JIT_CACHE_DIR or a folder of HOME. Nothing is downloaded and no GPU is needed. A kernel that fails leaves the
others compiled; the exit status is 1 then.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# In the package flashinfer.jit of every release from 0.6.8.post1 to 0.7.2; the function is gen_<name>_module.
FLASHINFER = {
    "norm": "norm",
    "page": "page",
    "rope": "rope",
    "sampling": "sampling",
    "trtllm_comm": "comm",
    "trtllm_mnnvl_comm": "comm",
}
# In sglang.jit_kernel up to 0.5.16, then in one of these packages of sglang.kernels.ops; and the function, which lost
# its underscore and "jit" here and there.
SGLANG = {
    "activation": (("activation",), "activation", "activation_module"),
    "awq_marlin_repack": (("quantization",), "awq_marlin_repack", "awq_marlin_repack_module"),
    "clamp_position": (("attention",), "clamp_position", "clamp_position_module"),
    "fused_rope": (("attention",), "rope", "fused_rope_module"),
    "gptq_marlin": (("quantization", "gemm"), "gptq_marlin", "gptq_marlin_module"),
    "gptq_marlin_repack": (("quantization",), "gptq_marlin_repack", "gptq_marlin_repack_module"),
    "kvcache": (("kvcache",), "kvcache", "kvcache_module"),
    "moe_wna16_marlin": (("moe",), "moe_wna16_marlin", "moe_wna16_marlin_module"),
    "resolve_future_token_ids": ((), "resolve_future_token_ids", "resolve_future_token_ids_module"),
    "set_mla_kv_buffer": (("kvcache",), "set_mla_kv_buffer", "set_mla_kv_buffer_module"),
}


def main() -> None:
    names = sys.argv[1:]
    builders = {name: find(name) for name in names}
    unknown = [name for name in names if builders[name] is None]
    if unknown:
        known = ", ".join([*FLASHINFER, *(f"{name}(...)" for name in SGLANG)])
        sys.exit(f"This release has no kernels {', '.join(unknown)}. Known are {known}")
    report: dict[str, dict[str, Any]] = {"libraries": {}, "seconds": {}, "failed": {}}
    for name, builder in builders.items():
        start = time.monotonic()
        try:
            report["libraries"][name] = str(builder())
        except Exception as failure:  # whatever a compiler or its caller raises: the next kernel may still succeed
            report["failed"][name] = f"{type(failure).__name__}: {failure}"[-3000:]
        report["seconds"][name] = round(time.monotonic() - start, 1)
    print(json.dumps(report))
    sys.exit(1 if report["failed"] else 0)


def find(name: str) -> Callable[[], Path] | None:
    """What compiles a kernel and gives its library; None where this release has no such kernel."""
    call = re.fullmatch(r"(\w+)\(([\w,]*)\)", name)
    if call:
        return sglang_kernel(call[1], call[2].split(",") if call[2] else [])
    if name not in FLASHINFER:
        return None
    generator = attribute(f"flashinfer.jit.{FLASHINFER[name]}", f"gen_{name}_module")
    return generator and (lambda: flashinfer_module(generator))


def flashinfer_module(generator: Callable[[], Any]) -> Path:
    specification = generator()
    specification.build(verbose=False)
    return Path(specification.get_library_path())


def sglang_kernel(name: str, words: list[str]) -> Callable[[], Path] | None:
    packages, module, function = SGLANG.get(name, ((), "", ""))
    places = ["sglang.jit_kernel", *(f"sglang.kernels.ops.{package}" for package in packages)]
    found = (attribute(f"{place}.{module}", prefix + function) for place in places for prefix in ("_jit_", ""))
    generator = next(filter(None, found), None) if module else None
    return generator and (lambda: build_for_gpu(generator, [value(word) for word in words]))


def build_for_gpu(generator: Callable[..., Any], arguments: list[Any]) -> Path:
    """Compile for the one architecture, in the name that SGLang gives it where it finds such a GPU."""
    listed = os.environ["FLASHINFER_CUDA_ARCH_LIST"].split()
    if len(listed) != 1:
        raise ValueError(f"SGLang compiles for one architecture, and FLASHINFER_CUDA_ARCH_LIST is {' '.join(listed)}")
    major, minor = map(int, re.sub(r"[a-z]", "", listed[0]).split("."))
    package = "sglang.jit_kernel.utils" if generator.__module__.startswith("sglang.jit") else "sglang.kernels.jit.utils"
    override = attribute(package, "override_jit_cuda_arch")
    suffix = attribute(f"{package}.arch", "_cuda_arch_suffix")  # from 0.5.16 on
    before = libraries()
    with override(major, minor, suffix(major, minor) if suffix else ""):
        generator(*arguments)
    (library,) = libraries() - before
    return library


def libraries() -> set[Path]:
    """SGLang's libraries that this process has loaded, as it loads each one that it compiles.

    Its releases name the folders differently, and the files of all begin alike.
    """
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    mapped = {Path(line.split(maxsplit=5)[-1].strip()) for line in maps.splitlines()}
    return {path for path in mapped if path.name.startswith("sgl_kernel_jit_") and path.suffix == ".so"}


def attribute(module: str, name: str) -> Any:
    """A name of a module; None where the release has not the one or the other."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as missing:
        if missing.name and module.startswith(missing.name):
            return None
        raise


def value(word: str) -> Any:
    """A template argument: a number, a truth value or a type of torch."""
    if word in ("true", "false"):
        return word == "true"
    return int(word) if word.isdigit() else getattr(importlib.import_module("torch"), word)


if __name__ == "__main__":
    main()
