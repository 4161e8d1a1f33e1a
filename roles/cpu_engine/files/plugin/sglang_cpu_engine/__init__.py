# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stand-in for a GPU: SGLang's out-of-tree platform interface, answered by the CPU (group sglang.srt.platforms)."""

import os
from importlib.metadata import version

# Ranks of one node that get an entry; SGLang takes one a rank and lets some be left over.
MOST_RANKS = 64


def activate():
    """Name of the platform class, or None where a GPU is: there this stand-in has no place."""
    import torch

    if torch.cuda.is_available():
        return None
    share_cores()
    return "sglang_cpu_engine.platform.CpuEngine"


def share_cores():
    """Let every rank use every core, where SGLang wants a NUMA node a rank.

    From 0.5.19 on it counts pipeline stages as ranks, too. Releases before count tensor-parallel ranks only, and refuse
    more entries than those.
    """
    from packaging.version import Version

    if Version(version("sglang")) >= Version("0.5.19"):
        every = f"0-{os.cpu_count() - 1}"
        os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join([every] * MOST_RANKS))
