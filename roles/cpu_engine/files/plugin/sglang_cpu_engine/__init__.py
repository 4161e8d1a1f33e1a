# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stand-in for a GPU: SGLang's out-of-tree platform interface, answered by the CPU (group sglang.srt.platforms)."""


def activate():
    """Name of the platform class, or None where a GPU is: there this stand-in has no place."""
    import torch

    return None if torch.cuda.is_available() else "sglang_cpu_engine.platform.CpuEngine"
