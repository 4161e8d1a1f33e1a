# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""SGLang's kernels in plain PyTorch on any CPU, for nodes without a GPU. For function, never for speed.

Serves SGLang 0.5.11 to 0.5.23. The first release that asks for a method is named where it differs.
"""

import platform

import psutil
import torch
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class CpuEngine(SRTPlatform):
    """A device named ``cpu`` with as much memory as the host has."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def get_device(self, device_id=0):
        return torch.device("cpu")

    def set_device(self, device):
        """There is one device only."""

    def get_device_name(self, device_id=0):
        return "cpu"

    def get_device_uuid(self, device_id=0):
        return platform.machine()

    def get_device_capability(self, device_id=0):
        return None

    def get_device_total_memory(self, device_id=0):
        return int(psutil.virtual_memory().total)

    def get_current_memory_usage(self, device=None):
        memory = psutil.virtual_memory()
        return float(memory.total - memory.available)

    def get_available_memory(self, device_id=0):
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def get_torch_distributed_backend_str(self):
        return "gloo"

    def get_group_coordinator_device(self, local_rank):
        return torch.device("cpu")

    def get_torch_profiler_activity_str(self):
        return "CPU"

    def get_torch_profiler_activity(self):
        return torch.profiler.ProfilerActivity.CPU

    def get_default_attention_backend(self):
        return "torch_native"

    def get_dispatch_key_name(self):
        return "native"

    def is_pin_memory_available(self, device=None):
        return False

    def support_cuda_graph(self):
        return False

    def support_piecewise_cuda_graph(self):
        return False

    def supports_fp8(self):
        return False

    def get_kv_pool_cls(self, *, kind):
        """SGLang's own pools, from 0.5.22 on. Before, they are asked for one by one, as below."""

    def get_mha_kv_pool_cls(self):
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return MHATokenToKVPool

    def get_mla_kv_pool_cls(self):
        from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

        return MLATokenToKVPool

    def get_paged_allocator_cls(self):
        from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

        class OneTokenPages(TokenToKVPoolAllocator):
            """The plain allocator behind the paged one's constructor; SGLang's page size on a CPU is 1."""

            def __init__(self, size, page_size=1, *arguments, **options):
                if page_size != 1:
                    raise ValueError(f"page size {page_size}: the CPU engine knows 1 only")
                super().__init__(size, *arguments, **options)

        return OneTokenPages

    def init_backend(self):
        """Take the absorbed path for multi-head latent attention: torch_native keeps the latents only."""
        from sglang.srt.models.deepseek_common import attention_backend_handler

        attention_backend_handler.AttentionBackendRegistry.register(
            "torch_native", attention_backend_handler._dispatch_mla_subtype
        )
