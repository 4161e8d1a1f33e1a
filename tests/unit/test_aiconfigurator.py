# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The adapter to aiconfigurator, on what the real program printed.

``data/aiconfigurator`` holds the output of 0.12.0 to this adapter's own questions about the shape of
``kimi-k2.5.json``, 2026-11-30, with its folders replaced by words. tests/estimator asks the real program.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import shapes
from ansible_collections.inference.sglang.plugins.module_utils import models
from ansible_collections.inference.sglang.plugins.module_utils.estimates import Estimate, Work
from ansible_collections.inference.sglang.plugins.module_utils.memory import Layout
from ansible_collections.inference.sglang.plugins.plugin_utils import aiconfigurator

HERE = Path(__file__).parent
DATA = HERE / "data" / "aiconfigurator"
CONFIG = shapes.config("kimi-k2.5")
KIMI = models.read(CONFIG)[0]
LLAMA = models.read(shapes.config("llama-3.1-8b"))[0]
SYSTEM = "rtx_pro_6000_server"
TP8, EP8, PP8 = Layout(tensor=8), Layout(tensor=8, expert=8), Layout(pipeline=8)
ONE = Work(1)


def recorded(name: str, layout: Layout, work: Work) -> Estimate:
    answer = aiconfigurator.parse((DATA / f"{name}.txt").read_text(), layout, work)
    assert answer is not None
    return answer


def program(folder: Path, *lines: str) -> str:
    path = folder / "program"
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return str(path)


def ask(command: str, work: Work = ONE, limit: float = 20, system: str = SYSTEM) -> tuple[Estimate | None, str]:
    answer, findings = aiconfigurator.estimate(command, CONFIG, KIMI, TP8, system=system, work=work, limit=limit)
    assert len(findings) == (answer is None)
    assert all(finding.severity in ("info", "warning") for finding in findings)
    return answer, findings[0].id if findings else ""


@pytest.mark.parametrize(
    ("name", "layout", "concurrency", "milliseconds", "tokens"),
    [
        ("tp8-1", TP8, 1, 9.504, 99.27),
        ("tp8-8", TP8, 8, 22.009, 341.54),
        ("ep8-1", EP8, 1, 9.879, 95.55),
        ("ep8-8", EP8, 8, 25.459, 297.79),
        ("pp8-8", PP8, 8, 23.661, 303.35),
        ("pp8-8", PP8, 1, 23.661, 303.35 / 8),  # the same question: one request in each busy slot
        ("pp8-64", PP8, 64, 90.398, 657.76),
        ("pp8-64", PP8, 60, 90.398, 657.76 * 60 / 64),
    ],
)
def test_what_it_says(name: str, layout: Layout, concurrency: int, milliseconds: float, tokens: float) -> None:
    answer = recorded(name, layout, Work(concurrency))
    assert answer.source == "aiconfigurator 0.12.0"
    assert answer.time_per_token * 1000 == pytest.approx(milliseconds)
    assert answer.per_request == pytest.approx(1000 / milliseconds)
    assert answer.tokens_per_second == pytest.approx(tokens)
    assert 0.1 < answer.time_to_first_token < 1


def test_the_order_of_layouts_at_equal_concurrency() -> None:
    for concurrency, order in ((1, "tp8 ep8 pp8"), (8, "tp8 pp8 ep8")):
        found = {
            name: recorded(f"{name}-{8 if layout is PP8 else concurrency}", layout, Work(concurrency))
            for name, layout in (("tp8", TP8), ("ep8", EP8), ("pp8", PP8))
        }
        assert " ".join(sorted(found, key=lambda name: -found[name].tokens_per_second)) == order


def test_empty_slots_of_an_async_depth_cost() -> None:
    plain, full, empty = (
        recorded("pp8-8", PP8, Work(8 + more, depth=depth)) for depth, more in ((0, 0), (1, 1), (4, 0))
    )
    # One request more, and a round that is as much longer.
    assert full.tokens_per_second == pytest.approx(plain.tokens_per_second)
    assert full.per_request == pytest.approx(plain.per_request * 8 / 9)
    assert empty.tokens_per_second == pytest.approx(plain.tokens_per_second * 8 / 12)


@pytest.mark.parametrize(
    ("layout", "work", "asked"),
    [
        (TP8, Work(8), "--batch-size 8 --tp-size 8 --pp-size 1 --attention-dp-size 1 --moe-tp-size 8 --moe-ep-size 1"),
        (EP8, Work(8), "--batch-size 8 --tp-size 8 --pp-size 1 --attention-dp-size 1 --moe-tp-size 1 --moe-ep-size 8"),
        (PP8, Work(8), "--batch-size 1 --tp-size 1 --pp-size 8 --attention-dp-size 1 --moe-tp-size 1 --moe-ep-size 1"),
        (PP8, Work(65), "--batch-size 9"),
        (PP8, Work(64, depth=8), "--batch-size 4"),
        (PP8, Work(64, micro_batch=4), "--batch-size 4"),
        (Layout(tensor=8, expert=4, attention_data=4), Work(10), "--batch-size 3 --tp-size 2 --pp-size 1 "
         "--attention-dp-size 4 --moe-tp-size 2 --moe-ep-size 4"),
        (TP8, Work(1, 1000, 200), "--isl 1000 --osl 200"),
        (TP8, Work(1), "--moe-quant-mode int4_wo"),
    ],
)  # fmt: skip
def test_what_it_is_asked(layout: Layout, work: Work, asked: str) -> None:
    line = " ".join(aiconfigurator.arguments("folder", KIMI, layout, SYSTEM, work))
    assert f" {asked} " in f"{line} "
    assert "kvcache" not in line


def test_what_it_is_asked_about_a_dense_model() -> None:
    line = " ".join(aiconfigurator.arguments("folder", LLAMA, Layout(tensor=2), SYSTEM, Work(1, kv_type="fp8_e4m3")))
    assert "moe" not in line
    assert "--kvcache-quant-mode fp8" in line


@pytest.mark.parametrize("name", ["unknown-system", "unknown-architecture", "no-data", "no-room", "broken"])
def test_why_it_does_not_answer(name: str, tmp_path: Path) -> None:
    answer, findings = aiconfigurator.estimate(
        program(tmp_path, f"cat {DATA / name}.txt", "exit 1"), CONFIG, KIMI, TP8, system=SYSTEM, work=Work(1)
    )
    assert answer is None
    fault = "failed" if name == "broken" else name.replace("-", "_")
    assert [finding.id for finding in findings] == [f"estimate.{fault}"]
    said = {
        "unknown-system": "Failed to load perf database for system=unknown",
        "unknown-architecture": "FooForCausalLM is not supported",
        "no-data": "No empirical utilisation data to estimate this op",
        "no-room": "does not fit in GPU memory",
        "broken": "num_heads 64 should be divisible by tp_size 3",
    }
    assert said[name] in findings[0].seen


def test_it_is_not_asked_in_vain(tmp_path: Path) -> None:
    command = program(tmp_path, f"touch {tmp_path / 'asked'}")
    assert ask(str(tmp_path / "missing")) == (None, "estimate.not_installed")
    assert ask(command, Work(1, graphs=False)) == (None, "estimate.without_graphs")
    assert ask(command, system="") == (None, "estimate.unknown_system")
    assert not (tmp_path / "asked").exists()


def test_it_is_found_on_the_path_and_reads_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, f"cp $(dirname $5)/$(basename $5)/config.json {tmp_path}/read", f"cat {DATA / 'tp8-1'}.txt")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    answer, _ = ask("program")
    assert answer is not None
    assert json.loads((tmp_path / "read").read_text()) == CONFIG


@pytest.mark.parametrize("printed", ["", "  TPOT:             9.504 ms", (DATA / "no-data.txt").read_text()])
def test_a_table_that_is_not_there(printed: str, tmp_path: Path) -> None:
    (tmp_path / "printed").write_text(printed)
    assert ask(program(tmp_path, f"cat {tmp_path}/printed")) == (None, "estimate.failed")


def test_a_program_that_cannot_run(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    assert ask(str(path)) == (None, "estimate.failed")


def test_it_never_hangs(tmp_path: Path) -> None:
    started = time.monotonic()
    command = program(tmp_path, f"sh -c 'echo $$ > {tmp_path}/child; exec sleep 60'", "sleep 60")
    assert ask(command, limit=1) == (None, "estimate.timed_out")
    assert time.monotonic() - started < 20
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    for _ in range(50):
        if not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.1)
    else:
        pytest.fail("what it started still runs")


QUESTIONS = [(TP8, Work(8)), (EP8, Work(8)), (PP8, Work(8))]


def test_the_usual_command_may_be_missing_and_another_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert aiconfigurator.asker("aiconfigurator") is None
    asker = aiconfigurator.asker(str(tmp_path / "mine"))
    assert asker
    answers, findings = asker(CONFIG, KIMI, SYSTEM)(QUESTIONS)
    assert (answers, [finding.id for finding in findings]) == ([], ["estimate.not_installed"])


def test_all_layouts_or_none(tmp_path: Path) -> None:
    picks = 'case "$*" in *"--pp-size 8"*) name=pp8-8;; *"--moe-ep-size 8"*) name=ep8-8;; *) name=tp8-8;; esac'
    command = program(tmp_path, picks, f"cat {DATA}/$name.txt")
    answers, findings = aiconfigurator.estimates(command, CONFIG, KIMI, QUESTIONS, system=SYSTEM)
    assert findings == []
    assert [round(answer.tokens_per_second) for answer in answers] == [342, 298, 303]
    fails = f'case "$name" in ep8-8) cat {DATA}/no-data.txt; exit 1;; esac'
    command = program(tmp_path, picks, fails, f"cat {DATA}/$name.txt")
    answers, findings = aiconfigurator.estimates(command, CONFIG, KIMI, QUESTIONS, system=SYSTEM)
    assert answers == []
    assert [finding.id for finding in findings] == ["estimate.no_data"]
    assert aiconfigurator.estimates(command, CONFIG, KIMI, [], system=SYSTEM) == ([], [])
