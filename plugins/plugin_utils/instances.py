# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From the roles' variables to what the core plans an instance from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import plan, spellings


def wanted(settings: Mapping[str, Any]) -> plan.Settings:
    """The instance that a host's settings describe; KeyError names a setting that could not be evaluated."""
    environment = dict(settings["sglang_server_environment"])
    if settings["cpu_engine_enabled"]:
        environment = {**settings["cpu_engine_environment"], **environment}
    return plan.Settings(
        name=settings["sglang_server_name"],
        user=settings["sglang_user"],
        release_path=settings["sglang_release_path"],
        cuda_home=settings["cuda_toolkit_home"],
        jit_cache=settings["flashinfer_cache_path"],
        cuda_arch=settings["flashinfer_architectures"],
        model_path=settings["sglang_server_model_path"],
        served_name=settings["sglang_server_served_name"],
        host=settings["sglang_server_host"],
        port=settings["sglang_server_port"],
        flags=settings["sglang_server_flags"],
        environment=environment,
        start_timeout=settings["sglang_server_start_timeout"],
        stop_timeout=settings["sglang_server_stop_timeout"],
        restart_limit=settings["sglang_server_restart_limit"],
        serving={name: settings.get(plan.PREFIX + name) for name in spellings.SETTINGS},
    )
