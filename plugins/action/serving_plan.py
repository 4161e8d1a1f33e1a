# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan an instance on the controller, from its settings and from what the module of the same name reads on the node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.inference.sglang.plugins.module_utils import explanations
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_dicts, errors
from ansible_collections.inference.sglang.plugins.plugin_utils import aiconfigurator, instances


class ActionModule(ActionBase):  # type: ignore[misc]
    """Action behind ``serving_plan``; documented in ``plugins/modules/serving_plan.py``."""

    _VALID_ARGS = frozenset({"settings", "reach"})
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The plan with its reasons; fails with all errors at once, one a line."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        settings = self._task.args.get("settings")
        if not isinstance(settings, dict):
            raise AnsibleActionFail("settings: give what inference.sglang.validate_settings returned as settings")
        try:
            key = str(self._templar.template(task_vars.get("sglang_server_api_key")) or "")
        except AnsibleError as error:
            raise AnsibleActionFail(f"sglang_server_api_key cannot be evaluated: {error.message}") from error
        folders = tuple(str(task_vars[name]) for name in ("inventory_dir", "playbook_dir") if task_vars.get(name))
        try:
            instance = instances.wanted(settings, key=key, folders=folders)
        except KeyError as missing:
            raise AnsibleActionFail(f"{missing} could not be evaluated: set it, or what it refers to") from missing
        facts: dict[str, Any] = {}
        if boolean(self._task.args.get("reach", True)):
            read = self._execute_module(
                module_name="inference.sglang.serving_plan",
                module_args={
                    "model_path": instance.settings.model_path,
                    "instance": instance.settings.name,
                    "gpus": not settings["cpu_engine_enabled"],
                },
                task_vars=task_vars,
            )
            if read.get("failed"):
                return {**result, **read}
            facts = read["facts"]
        ask = aiconfigurator.asker(settings["sglang_server_aiconfigurator"])
        planned = instances.planned(instance, settings["sglang_release"], facts, ask)
        if wrong := errors(planned.findings):
            host = task_vars["inventory_hostname"]
            lines = "\n".join(f"{host}: {finding}" for finding in wrong)
            result.update(failed=True, msg=f"{len(wrong)} wrong in the plan of {host}, nothing was changed:\n{lines}")
        else:
            made = dict(planned.content)
            result.update(
                plan=made,
                table="\n".join([*explanations.told(made), *_told(planned.findings)]),
                warnings=[str(finding) for finding in planned.findings if finding.severity == "warning"],
            )
        result.update(changed=False, facts=facts, findings=as_dicts(planned.findings))
        return result


def _told(findings: Iterable[Finding]) -> list[str]:
    lines = [str(finding) for finding in findings]
    return ["", "findings", *lines] if lines else []
