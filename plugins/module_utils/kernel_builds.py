# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compilations of kernels on a node: how many at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping

JOB_BYTES = 2 * 10**9
"""Memory for one nvcc, whose largest process took 1.15 GB for SGLang's moe_wna16_marlin and 1.10 GB for FlashInfer's
trtllm_comm: SGLang 0.5.12.post1, CUDA 13.0, g++ 12, x86_64, 2026-11-30."""


LARGE_JOB = 8 * 2**30
"""Memory for one nvcc of the largest kernels, CUTLASS's for experts (flashinfer-ai/flashinfer#3634), which a serving
process compiles for its own shapes."""

ENGINE = 16 * 2**30
"""Memory that the processes of an engine keep for themselves while one of them compiles."""


def jobs(cpus: int, available: int, job: int = JOB_BYTES) -> int:
    """How many compilers may run at a time, 1 at least, with ``available`` bytes of memory and ``job`` bytes for each.

    ninja starts one for each processor, and without memory for all of them the kernel ends some, or the engine beside
    them (flashinfer-ai/flashinfer#4410).
    """
    return max(min(cpus, available // job), 1)


def engine_jobs(cpus: int, available: int) -> int:
    """How many compilers a serving process may run at a time, beside the engine itself; arguments as for ``jobs``."""
    return jobs(cpus, available - ENGINE, LARGE_JOB)


def killed(words: str, status: int = 0) -> bool:
    """Whether the kernel ended a compiler for want of memory, by what ninja, gcc and the shell say, or by the exit
    status of what ran it: 137, or -9. nvcc itself never ends by signal 9.
    """
    told = re.search(r"\bKilled\b|\b(exit (code|status)|code=|returned|status) ?137\b|\bsignal 9\b|SIGKILL", words)
    return status in (137, -9) or told is not None


def available_memory(meminfo: str) -> int:
    """Bytes that programs can have without swapping: ``MemAvailable`` of /proc/meminfo; 0 where it is not told."""
    return _bytes("MemAvailable", meminfo)


def total_memory(meminfo: str) -> int:
    """Bytes of memory that the kernel has: ``MemTotal`` of /proc/meminfo; 0 where it is not told."""
    return _bytes("MemTotal", meminfo)


def _bytes(name: str, meminfo: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def environment(given: Mapping[str, object], cpus: int, meminfo: str) -> dict[str, str]:
    """Variables that bound the compilers of ninja, unless the user has bounded them.

    FLASHINFER_NVCC_THREADS is nvcc's own ``--threads``, which would multiply the memory of a job.
    """
    bounds = {"MAX_JOBS": str(jobs(cpus, available_memory(meminfo))), "FLASHINFER_NVCC_THREADS": "1"}
    return {name: value for name, value in bounds.items() if name not in given}
