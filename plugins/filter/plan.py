# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The filter that turns settings into the plan of an instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.sglang.plugins.module_utils import findings, plan
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables


def serving_plan(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` are the roles' variables, as ``inference.sglang.validate_settings`` returns them."""
    environment = dict(settings["sglang_server_environment"])
    if settings["cpu_engine_enabled"]:
        environment = {**settings["cpu_engine_environment"], **environment}
    wanted = plan.Settings(
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
    )
    table = flag_tables.load(settings["sglang_release"])
    if wrong := findings.errors(plan.check(wanted, table)):
        raise AnsibleFilterError(findings.as_text(wrong))
    return plan.make(wanted, table)


class FilterModule:
    """Found by Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"serving_plan": serving_plan}
