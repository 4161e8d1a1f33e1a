# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Have the module ``model_weights`` fetch, and say how far it is until it is done."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_text

display = Display()

# Seconds between two looks, at first and at last, and at most between two lines.
FIRST, LAST = 0.25, 4
SILENCE = 10


class ActionModule(ActionBase):  # type: ignore[misc]
    """Documented in ``plugins/modules/model_weights.py``."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result, once nothing is under way any more."""
        super().run(tmp, task_vars)
        host = (task_vars or {})["inventory_hostname"]
        if self._task.check_mode or self._task.args.get("state") == "looked":
            return self._call(task_vars)
        look = self._call(task_vars, state="looked")
        if look.get("failed") or look["complete"]:
            return look
        if not look["running"]:
            display.display(f"{host}: asks what there is to fetch")
        result = self._call(task_vars)
        if not result.get("running"):
            return result
        shown, pause = float("-inf"), FIRST
        while True:
            time.sleep(pause)
            pause = min(2 * pause, LAST)
            look = self._call(task_vars, state="looked")
            if look.get("failed") or not look["running"]:
                break
            if time.monotonic() - shown >= SILENCE:
                display.display(f"{host}: {look['progress']}")
                shown = time.monotonic()
        if look.get("complete") or look.get("failed"):
            return {**look, "changed": True}
        findings = [Finding(**finding) for finding in look["findings"]]
        path = self._task.args["path"]
        return {**look, "failed": True, "msg": f"The weights in {path} are not complete:\n{as_text(findings)}"}

    def _call(self, task_vars: dict[str, Any] | None, **changes: object) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name="inference.sglang.model_weights",
            module_args={**self._task.args, **changes},
            task_vars=task_vars,
        )
        return result
