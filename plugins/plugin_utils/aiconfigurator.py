# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""aiconfigurator 0.12.0, a performance model with data measured on real GPUs, asked about layouts.

It is optional and large (0.7 GB), so it has an environment of its own on the controller and is reached by its command.
In a checkout::

    uv venv .state/aiconfigurator && uv pip sync --python .state/aiconfigurator requirements/aiconfigurator.txt

Its command prints a table and nothing that is made for machines; tests/unit/data/aiconfigurator holds real answers. It
knows neither async depth nor what a release accepts, and all its data were collected with CUDA graphs.

Its successor is named aisimulate. It is said to keep the command's name and arguments (aiconfigurator 0.12.0 prints
so), in which case it works here too; that was not tried, as it comes from NVIDIA's own index only.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils.estimates import Estimate, Work, token_time
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, Severity
from ansible_collections.inference.sglang.plugins.module_utils.memory import Layout
from ansible_collections.inference.sglang.plugins.module_utils.models import Shape
from ansible_collections.inference.sglang.plugins.module_utils.tuning import Ask

HERE = "plugins/plugin_utils/aiconfigurator.py"
COMMAND = "aiconfigurator"
LIMIT = 120
"""Seconds for one question; the real program takes 5 to 12, and twice that on a busy machine."""

Asker = Callable[[Mapping[str, Any], Shape, str], Ask]
"""Gives the estimator for a parsed ``config.json``, its shape, and what aiconfigurator calls the GPU."""

FAULTS = {
    "unknown_system": "No database found for system|Failed to load perf database for system",
    "unknown_architecture": "is not supported. Supported architectures",
    "no_data": "perf database error|empirical estimation not implemented",
    "no_room": "RuntimeError: OOM",
}
"""Why it does not answer, by what it prints then."""

REMEDIES = {
    "not_installed": "Install requirements/aiconfigurator.txt into an environment of its own and name its command, to "
    "have layouts compared by measured data",
    "without_graphs": "Leave CUDA graphs on to have it asked",
    "unknown_system": "Update it for newer GPUs",
    "unknown_architecture": "Update it for newer models",
    "no_data": "Update it for data of this model's kernels on this GPU",
    "no_room": "Ask for more GPUs, or trust the plan's own memory budget",
    "timed_out": "Run its command by hand to see why it is slow",
    "failed": "Run its command by hand to see all that it prints",
}


def asker(command: str) -> Asker | None:
    """Asks about a model on a GPU by this command; None where it is the usual one and not there."""
    if command == COMMAND and shutil.which(command) is None:
        return None

    def about(config: Mapping[str, Any], shape: Shape, system: str) -> Ask:
        return lambda questions: estimates(command, config, shape, questions, system=system)

    return about


def estimates(
    command: str,
    config: Mapping[str, Any],
    shape: Shape,
    questions: Sequence[tuple[Layout, Work]],
    *,
    system: str,
    limit: float = LIMIT,
) -> tuple[list[Estimate], list[Finding]]:
    """An estimate for each layout with its work, or none at all and the finding that says why.

    A comparison with another estimator's numbers would mean nothing, so one question without an answer leaves all open.
    The first one is asked alone: what is wrong with system or model is told by it.
    """
    found: list[Estimate] = []
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 8)) as pool:
        for batch in (questions[:1], questions[1:]):
            answers = pool.map(
                lambda question: estimate(
                    command, config, shape, question[0], system=system, work=question[1], limit=limit
                ),
                batch,
            )
            for answer, findings in list(answers):
                if answer is None:
                    return [], findings
                found.append(answer)
    return found, []


def estimate(
    command: str,
    config: Mapping[str, Any],
    shape: Shape,
    layout: Layout,
    *,
    system: str,
    work: Work,
    limit: float = LIMIT,
) -> tuple[Estimate | None, list[Finding]]:
    """What the program says about one layout; without an answer, the finding (info) that says why.

    ``command``  its name on PATH, or its path
    ``config``   parsed ``config.json`` of the model
    ``system``   what it calls the GPU: ``Card.system``
    ``limit``    seconds after which it is ended
    """
    program = shutil.which(command)
    if program is None:
        return None, [_finding("not_installed", f"There is no command {command} on the controller")]
    if not work.graphs:
        return None, [_finding("without_graphs", f"{COMMAND} has no data of runs without CUDA graphs")]
    if not system:
        return None, [_finding("unknown_system", f"{COMMAND} has no name for this GPU")]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        printed, status = _run([program, *arguments(folder, shape, layout, system, work)], limit)
    if status is None:
        return None, [_finding("timed_out", f"{COMMAND} did not answer within {limit:.0f} s")]
    if status != 0:
        fault = next((name for name, pattern in FAULTS.items() if re.search(pattern, printed)), "failed")
        return None, [_finding(fault, f"{COMMAND} ended with status {status}: {_last_line(printed)}")]
    answer = parse(printed, layout, work)
    if answer is None:
        return None, [_finding("failed", f"{COMMAND} printed no table that is known: {_last_line(printed)}")]
    return answer, []


def arguments(folder: str, shape: Shape, layout: Layout, system: str, work: Work) -> list[str]:
    """Arguments of the question about one layout.

    Its batch is what one attention data rank holds of one micro-batch. HYBRID gives the measured numbers where there
    are any, and those of similar shapes elsewhere. The quantisation is read from ``config.json``, all but INT4 experts;
    so is the KV cache's type for MLA, of which there are no FP8 data on every GPU, and whose cache is a small part.
    """
    asked = {
        "--model-path": folder,
        "--system": system,
        "--backend": "sglang",
        "--database-mode": "HYBRID",
        "--isl": work.input_tokens,
        "--osl": work.output_tokens,
        "--batch-size": math.ceil(work.batch(layout) / layout.attention_data),
        "--tp-size": layout.attention_tensor,
        "--pp-size": layout.pipeline,
        "--attention-dp-size": layout.attention_data,
    }
    if shape.experts:
        asked |= {"--moe-tp-size": layout.tensor // layout.expert, "--moe-ep-size": layout.expert}
        if shape.weight_format.name == "int4":
            asked["--moe-quant-mode"] = "int4_wo"
    if shape.attention != "mla" and work.kv_type.startswith("fp8"):
        asked["--kvcache-quant-mode"] = "fp8"
    return ["cli", "estimate", "--no-color", *(str(word) for pair in asked.items() for word in pair)]


def parse(printed: str, layout: Layout, work: Work) -> Estimate | None:
    """The estimate that its table states; None where a row is missing.

    It takes all stages to be busy with whole batches. Where fewer requests run, they get their part of its tokens, and
    slots that an async depth adds lengthen the round as they do in the roofline.
    """
    rows = dict(re.findall(r"^  (TTFT|TPOT|tokens/s|Concurrency): +([0-9.]+)(?: ms)?$", printed, re.MULTILINE))
    version = re.search(r"Loading AIConfigurator version: (\S+)", printed)
    if len(rows) < 4 or version is None:
        return None
    token, concurrency = float(rows["TPOT"]) / 1000, float(rows["Concurrency"])
    if not token or not concurrency:
        return None
    stage = token / layout.pipeline
    time = max(token, token_time([stage] * layout.pipeline, [0.0] * layout.pipeline, layout, work))
    return Estimate(
        time_per_token=time,
        tokens_per_second=float(rows["tokens/s"]) * work.running(layout) / concurrency * token / time,
        per_request=1 / time,
        time_to_first_token=float(rows["TTFT"]) / 1000,
        source=f"{COMMAND} {version[1]}",
    )


def _run(argv: list[str], limit: float) -> tuple[str, int | None]:
    """All that a program prints, and its exit status: None where it was ended after ``limit`` seconds."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return str(error), 126
    try:
        printed = process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with what it started, which may hold the pipe
        process.communicate()
        return "", None
    return printed.decode(errors="replace"), process.returncode


def _last_line(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing"


def _finding(fault: str, seen: str) -> Finding:
    # Without an answer another layout may be chosen: a program that is there and does not work is to be seen.
    severity: Severity = "warning" if fault in ("failed", "not_installed", "timed_out") else "info"
    return Finding(f"estimate.{fault}", severity, seen, REMEDIES[fault], HERE)
