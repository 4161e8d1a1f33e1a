# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Poll the module ``sglang_ready`` and show what moves meanwhile."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

# A line at least this often, in seconds, also when nothing moves.
SILENCE = 10


class ActionModule(ActionBase):  # type: ignore[misc]
    """Documented in ``plugins/modules/sglang_ready.py``."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """One module call a look; the result of the last, or a failure that shows the journal."""
        super().run(tmp, task_vars)
        host = (task_vars or {})["inventory_hostname"]
        limit = int(self._task.args.get("timeout", 1800))
        began = time.monotonic()
        shown, last = began, ""
        fewest: int | None = None
        while True:
            result: dict[str, Any] = self._execute_module(
                module_name="inference.sglang.sglang_ready", task_vars=task_vars
            )
            waited = time.monotonic() - began
            if result.get("failed") or result.get("skipped") or result.get("ready"):
                return result | {"waited": round(waited, 1)}
            lines = [line for line in result["journal"] if line.strip()]
            # An engine that dies while it is waited for will die again. The count may be an old one at the first look.
            fewest = min(result["restarts"], result["restarts"] if fewest is None else fewest)
            died = result["died"] or result["restarts"] > fewest
            if result["over"] or died or waited > limit:
                late = f"{limit} s are over (sglang_server_start_timeout and sglang_server_stop_timeout)"
                why = "systemd gave it up" if result["over"] else "the engine died at its start" if died else late
                journal = "\n".join(lines)
                return result | {
                    "failed": True,
                    "msg": f"The instance does not answer: {why}; {result['state']}\n{journal}",
                }
            # SGLang's own lines begin with a time in brackets; warnings of its libraries say nothing of progress.
            moved = next((line for line in reversed(lines) if line.startswith("[")), result["state"])
            if moved != last or time.monotonic() - shown >= SILENCE:
                display.display(f"{host}: {waited:4.0f} s: {moved[:140]}")
                shown, last = time.monotonic(), moved
