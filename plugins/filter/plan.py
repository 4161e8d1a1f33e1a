# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The filter that turns settings into the plan of an instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.sglang.plugins.module_utils import findings, plan
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables, instances


def serving_plan(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` are the roles' variables, as ``inference.sglang.validate_settings`` returns them."""
    try:
        wanted = instances.wanted(settings)
    except KeyError as missing:
        raise AnsibleFilterError(
            f"serving_plan: {missing} could not be evaluated: set it, or what it refers to"
        ) from missing
    table = flag_tables.load(settings["sglang_release"])
    if wrong := findings.errors(plan.check(wanted, table)):
        raise AnsibleFilterError(findings.as_text(wrong))
    return plan.make(wanted, table)


class FilterModule:
    """Found by Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"serving_plan": serving_plan}
