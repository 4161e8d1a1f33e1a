# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Field cases through the whole chain: variables as a user writes them → validated → planned → the text of the unit.

Pieces of the same cases that one room tests by itself are not repeated here:

C08  test_check_launch (the programs, as the unit's user finds them)
C03, C04, C05, C07, C09, C11, C19, and the node of C18  test_field_nodes
C12  test_audit (``unwritable``, and caches of units that others wrote)
C14  test_launch_rules (``pipeline_speculation``, ``expert_size``, ``partition``), test_memory (``sound``)
C15  test_tuning and test_launch_rules (every refused backend)
C16  test_flag_history, test_flags, test_spellings and test_plan (each release's own flag)
C17  test_memory (the case's own numbers, and what is said)
C20  test_instances (the timeout by weights and read rate), test_server_unit (the limits), test_audit
C21  test_gpus and test_check_free (orphans, port), test_modules and test_serving_plan_module (a unit that is starting)
C22  test_units, test_server_unit and test_audit (quoting), test_credentials (the key)
C25  test_audit (the story's two units), test_tuning and test_instances (what a planned pipeline is spared)
C28  test_tuning and test_launch_rules (the barrier)
C31  test_flags (each type of flag), test_server_unit (values that are no text)
"""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.inference.sglang.plugins.filter.units import key_file
from ansible_collections.inference.sglang.plugins.module_utils import audit, releases, rules, tiny_llama
from ansible_collections.inference.sglang.plugins.module_utils import node as node_facts
from ansible_collections.inference.sglang.plugins.module_utils.findings import errors
from ansible_collections.inference.sglang.plugins.module_utils.launch_rules import Launch
from ansible_collections.inference.sglang.plugins.module_utils.units import Unit, parse_unit
from ansible_collections.inference.sglang.plugins.modules import unit_audit
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables, instances, variables
from test_check_free import ORPHANS as HOLDERS
from test_check_free import Check, check, pids, report
from test_gpus import ORPHANS
from test_instances import DEFAULTS, RELEASE, REST, ROOT, SETTINGS, model
from test_rules import FIT
from test_rules import SETTINGS as NODE_SETTINGS
from test_server_unit import TEMPLATE

__all__ = ["check"]  # a fixture

SPECS = yaml.safe_load((ROOT / "roles/sglang_server/meta/argument_specs.yml").read_text(encoding="utf-8"))
OPTIONS = SPECS["argument_specs"]["main"]["options"]
BOX = {"gpu_model": "rtx_pro_6000_server", "gpu_count": 8, "model_shape": "kimi-k2.5"}
NEWEST = "0.5.23"


def planned(
    release: str = RELEASE, facts: dict[str, Any] | None = None, *, key: str = "", **changes: Any
) -> instances.Planned:
    """The plan of variables, each judged and converted as ``validate_settings`` does it; facts None: no node."""
    given = {f"sglang_server_{name}": value for name, value in changes.items()}
    for name, value in given.items():
        wrong, given[name] = variables.judge(name, OPTIONS[name], "sglang_server", {name: value}, DEFAULTS[name])
        assert wrong == []
    return instances.planned(instances.wanted(SETTINGS | given, key=key), release, facts)


def text(made: instances.Planned) -> str:
    assert errors(made.findings) == []
    return TEMPLATE.render(plan=made.content, ansible_managed="managed")


def unit(made: instances.Planned) -> Unit:
    """The unit as systemd reads it; nothing in it may be doubtful."""
    read = parse_unit(text(made))
    assert read.findings == []
    return read


def service(made: instances.Planned) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in unit(made).sections["Service"]:
        found.setdefault(name, []).append(value)
    return found


def flags(made: instances.Planned) -> dict[str, list[str]]:
    """Each flag of the unit's command with its words."""
    argv = unit(made).argv
    found: dict[str, list[str]] = {}
    for word in argv[argv.index("sglang.launch_server") + 1 :]:
        if word.startswith("--"):
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def refused(made: instances.Planned) -> list[str]:
    """The ids of what stops the run, before which nothing is rendered."""
    assert made.content == {}
    return ids_of(made, "error")


def ids_of(made: instances.Planned, severity: str) -> list[str]:
    return [finding.id for finding in made.findings if finding.severity == severity]


# C08: anthony-chaudhary/fak#923, flashinfer-ai/flashinfer#3386.


@pytest.mark.parametrize("changes", [{}, {"preset": "kimi-k2-pp8"}, {"environment": {"OMP_NUM_THREADS": "8"}}])
def test_c08_the_path_begins_with_the_environment_and_the_toolkit(changes: dict[str, Any]) -> None:
    path = unit(planned(**changes)).environment["PATH"].split(":")
    assert path[:2] == ["/opt/sglang/releases/r/bin", "/opt/sglang/toolkits/t/bin"]
    assert {"/usr/local/sbin", "/usr/bin", "/bin"} <= set(path)


def test_c08_without_the_path_ninja_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake file system: ninja in the virtual environment alone, nvcc in the toolkit alone."""
    for program in ("venv/bin/ninja", "venv/bin/python", "cuda-13.0/bin/nvcc", "usr/bin/c++"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setattr(audit, "SEARCH_PATH", f"{tmp_path}/usr/bin")
    places = {"sglang_release_path": f"{tmp_path}/venv", "cuda_toolkit_home": f"{tmp_path}/cuda-13.0"}
    made = instances.planned(instances.wanted(SETTINGS | places), RELEASE)
    rendered = text(made).replace(
        ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", f":{tmp_path}/usr/bin"
    )

    def lacking(rendered: str) -> list[str]:
        found = audit.parse(rendered, (), flag_tables.load(RELEASE))
        launch = Launch(RELEASE, flag_tables.load(RELEASE), {})
        judged = audit.judge(found, launch, unit_audit.host(found))
        return [finding.seen for finding in judged if finding.id == "audit.search_path"]

    assert lacking(rendered) == []
    (seen,) = lacking(re.sub(r"(?m)^Environment=PATH=.*\n", "", rendered))
    assert seen.startswith("ninja is not reachable from the unit")


# C12: Center-for-AI-Innovation/LLMFlux#124.


def test_c12_a_cache_in_a_hidden_home_is_refused_by_name() -> None:
    made = planned(environment={"HF_HOME": "/home/a/hf"})
    assert refused(made) == ["unit.cache"]
    assert "HF_HOME=/home/a/hf" in errors(made.findings)[0].seen
    assert "ProtectHome" in errors(made.findings)[0].seen


@pytest.mark.parametrize("name", audit.CACHES)
def test_c12_a_cache_that_a_restart_empties_is_refused(name: str) -> None:
    made = planned(environment={name: "/tmp/cache"})
    assert refused(made) == ["unit.cache"]
    assert "PrivateTmp" in errors(made.findings)[0].seen


def test_c12_all_caches_lie_where_the_unit_may_write() -> None:
    """The engine's user has no home, and its unit is ProtectSystem=strict, ProtectHome= and PrivateTmp=."""
    found = audit.parse(text(planned()), (), flag_tables.load(RELEASE))
    assert (found.strict, found.protect_home, found.private_tmp) == (True, "yes", True)
    caches = {name: found.environment[name] for name in (*audit.CACHES, "HOME", "TORCHINDUCTOR_CACHE_DIR")}
    assert [name for name, path in caches.items() if not path.startswith("/var/cache/sglang/r-t")] == []
    assert [name for name, path in caches.items() if not found.writes(path)] == []


# C14: sgl-project/sglang#10589. No node is reached: there are no facts.


def test_c14_a_speculation_with_stages() -> None:
    given = {"tensor_parallel": 1, "pipeline_parallel": 8, "flags": {"speculative-algorithm": "EAGLE"}}
    assert refused(planned(**given)) == ["launch.pipeline_speculation"]
    assert refused(planned(NEWEST, **given)) == ["launch.pipeline_speculation"]
    prefill = {**given, "flags": {**given["flags"], "disaggregation-mode": "prefill"}}
    assert flags(planned(NEWEST, **prefill))["--speculative-algorithm"] == ["EAGLE"]
    assert errors(planned(NEWEST, **given, environment={"SGLANG_ENABLE_PP_SPEC": "1"}).findings) == []


@pytest.mark.parametrize("known", [{}, BOX], ids=["unknown", "known"])
def test_c14_experts_without_tensor_ranks(known: dict[str, Any]) -> None:
    made = planned(tensor_parallel=1, pipeline_parallel=8, expert_parallel=8, **known)
    assert refused(made) == ["launch.expert_size"]
    assert "Use --tp-size 8" in errors(made.findings)[0].remedy
    given = flags(planned(tensor_parallel=8, pipeline_parallel=1, expert_parallel=8, **known))
    assert [given[name] for name in ("--tp-size", "--pp-size", "--ep-size")] == [["8"], ["1"], ["8"]]


@pytest.mark.parametrize("known", [{"model_shape": "kimi-k2.5"}, BOX], ids=["model", "model and GPUs"])
def test_c14_a_partition_of_another_sum(known: dict[str, Any]) -> None:
    partition = {"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,8,8,7"}
    made = planned(pipeline_parallel=8, environment=partition, **known)
    assert refused(made) == ["launch.partition"], "told once"
    assert "63 layers for the model's 61" in errors(made.findings)[0].seen
    right = {"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,7,7,7"}
    kept = unit(planned(pipeline_parallel=8, environment=right, **known))
    assert kept.environment["SGLANG_PP_LAYER_PARTITION"] == right["SGLANG_PP_LAYER_PARTITION"]


# C15: sgl-project/sglang#24633.


@pytest.mark.parametrize("release", releases.RELEASES)
def test_c15_the_backend_is_written_where_nothing_is_set(release: str) -> None:
    assert flags(planned(release, **BOX))["--attention-backend"] == ["triton"]


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"attention_backend": "trtllm_mla"}, "--attention-backend"),
        (
            {"flags": {"prefill-attention-backend": "trtllm_mla", "decode-attention-backend": "triton"}},
            "--prefill-attention-backend",
        ),
    ],
)
def test_c15_datacentre_kernels(changes: dict[str, Any], flag: str) -> None:
    made = planned(NEWEST, **BOX, **changes)
    assert refused(made) == ["launch.attention_hardware"]
    assert f"{flag} trtllm_mla" in errors(made.findings)[0].seen
    datacentre = {"gpu_model": "b200", "gpu_count": 8, "model_shape": "kimi-k2.5"}
    assert flags(planned(NEWEST, **datacentre, **changes))[flag] == ["trtllm_mla"]


# C16: sgl-project/sglang#38375.


def test_c16_each_release_gets_its_own_flag() -> None:
    assert flags(planned(cuda_graph_max_batch_size=64))["--cuda-graph-max-bs"] == ["64"]
    assert flags(planned(NEWEST, cuda_graph_max_batch_size=64))["--cuda-graph-max-bs-decode"] == ["64"]


@pytest.mark.parametrize(
    ("release", "given", "remedy"),
    [
        (NEWEST, {"cuda-graph-max-bs": 64}, "--cuda-graph-max-bs-decode"),
        (NEWEST, {"reasoning_parser": "kimi_k2"}, "--reasoning-parser"),
        (RELEASE, {"reasoning_parser": "kimi_k2"}, "--reasoning-parser"),
    ],
)
def test_c16_a_flag_that_the_release_does_not_take(release: str, given: dict[str, Any], remedy: str) -> None:
    made = planned(release, flags=given)
    assert len(refused(made)) == 1
    assert remedy in errors(made.findings)[0].remedy


# C17: sgl-project/sglang#4330.


def test_c17_a_fraction_squeezed_from_both_sides() -> None:
    """Kimi K2's 594 GB on eight stages: 0.70, 0.88, 0.97."""
    given = {**BOX, "pipeline_parallel": 8, "attention_backend": "triton"}
    small = planned(**given, memory_fraction=0.70)
    assert refused(small) == ["memory.fraction_too_small"]
    seen = errors(small.findings)[0].seen
    weights, allowed, usable = map(float, re.findall(r"([\d.]+) GiB", seen))
    assert allowed < weights < usable < 95.6
    assert allowed == pytest.approx(0.70 * usable, abs=0.1)
    right = planned(**given, memory_fraction=0.88)
    assert flags(right)["--mem-fraction-static"] == ["0.88"]
    assert {finding.severity for finding in right.findings} <= {"info"}
    large = planned(**given, memory_fraction=0.97)
    assert ids_of(large, "warning") == ["memory.fraction_too_large"]
    (remedy,) = (finding.remedy for finding in large.findings if finding.id == "memory.fraction_too_large")
    order = [remedy.index(words) for words in ("Set 0.", "smaller batches", "turning graphs off is the last resort")]
    assert order == sorted(order)
    assert flags(large)["--mem-fraction-static"] == ["0.97"]


# C18: local-inference-lab/rtx6kpro#15.


@pytest.mark.parametrize("release", [RELEASE, NEWEST])
@pytest.mark.parametrize("known", [{}, BOX], ids=["unknown", "known"])
def test_c18_the_fallback_renders_both_or_neither(release: str, known: dict[str, Any]) -> None:
    made = planned(release, **known, tensor_parallel=8, p2p_fallback=True)
    assert flags(made)["--disable-custom-all-reduce"] == []
    environment = unit(made).environment
    assert environment["NCCL_P2P_DISABLE"] == "1"
    assert "NCCL_P2P_LEVEL" not in environment
    explained = json.dumps(made.content["reasons"])
    assert "rtx6kpro#15" in explained
    assert "the hang moves on" in explained
    for changes in ({}, {"p2p_fallback": False}, {"p2p_fallback": "no"}):
        other = planned(release, **known, tensor_parallel=8, **changes)
        assert "--disable-custom-all-reduce" not in flags(other)
        assert "NCCL_P2P_DISABLE" not in unit(other).environment


def test_c18_half_of_the_workaround_is_warned_of() -> None:
    half = planned(**BOX, tensor_parallel=8, environment={"NCCL_P2P_DISABLE": "1"})
    assert ids_of(half, "warning") == ["launch.nccl_p2p"]
    whole = planned(**BOX, tensor_parallel=8, p2p_fallback=True, environment={"NCCL_P2P_DISABLE": "1"})
    assert ids_of(whole, "warning") == []


# C20: RIDE-Lab/SAGE#1346.


@pytest.mark.parametrize(("rate", "least", "most"), [(900, 1980, 2000), (6000, 1800, 1800)])
def test_c20_the_start_has_time_and_an_end(rate: int, least: int, most: int) -> None:
    found = service(planned(preset="kimi-k2-pp8", read_rate=rate))
    assert least <= int(found["TimeoutStartSec"][-1]) <= most
    assert found["ExecStartPost"]
    assert [name for name, values in found.items() if "Timeout" in name and "infinity" in values] == []
    assert found["LimitMEMLOCK"] == ["infinity"]


def test_c20_nothing_writes_limits_that_systemd_ignores() -> None:
    # Role node_settings may, for people who log in, where somebody names them.
    logins = ROOT / "roles" / "node_settings"
    assert yaml.safe_load((logins / "defaults" / "main.yml").read_text())["node_settings_limits"] == []
    told = [path for path in (ROOT / "roles").rglob("*") if path.suffix in (".yml", ".j2") and path.is_file()]
    told = [path for path in told if not path.is_relative_to(logins)]
    assert len(told) > 20
    assert [str(path) for path in told if re.search(r"limits\.(conf|d)\b", path.read_text(encoding="utf-8"))] == []


# C21: sgl-project/sglang#16756.


def node(unit_name: str, *, running: bool) -> dict[str, Any]:
    read = ORPHANS.owned(lambda _pid: (unit_name, ""))
    facts = {"gpus": read.to_dict(), "model": model(), **REST}
    facts["unit"] = {"name": "sglang-kimi.service", "running": running}
    return json.loads(json.dumps(facts))


@pytest.mark.parametrize("owner", ["", "sglang-kimi.service"])
def test_c21_orphans_of_a_unit_that_does_not_run(owner: str) -> None:
    made = planned(facts=node(owner, running=False), preset="kimi-k2-pp8")
    assert refused(made) == ["gpus.held"]
    (finding,) = errors(made.findings)
    for index in range(8):
        assert f"{41000 + index} (sglang::scheduler_PP{index}, 83980 MiB on GPU {index})" in finding.seen
    assert "kill 41000 41001 41002 41003 41004 41005 41006 41007" in finding.remedy


def test_c21_a_unit_that_is_starting_may_hold_its_gpus() -> None:
    """Its plan is made as ever, and has the same digest, so that nothing is restarted."""
    made = planned(facts=node("sglang-kimi.service", running=True), preset="kimi-k2-pp8")
    assert errors(made.findings) == []
    idle = node("", running=False)
    idle["gpus"] = json.loads(json.dumps(ORPHANS.quiet().to_dict()))
    assert made.content["digest"] == planned(facts=idle, preset="kimi-k2-pp8").content["digest"]


def test_c21_a_start_is_refused_for_orphans_and_for_the_port_at_once(check: Check) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = check(f"http://127.0.0.1:{port}", script=report(HOLDERS))
    assert done.returncode == 1
    assert pids(done)[:8] == [41000 + index for index in range(8)]
    assert f"127.0.0.1:{port} cannot be listened on" in done.stdout
    program = service(planned(port=port))["ExecStartPre"][-1].split()
    assert program[1:] == ["/opt/sglang/bin/check-free", f"http://127.0.0.1:{port}"]


# C22: vibeunion/supacloud#269.

JSON = '{"rope_scaling": {"factor": 2.0}, "note": "50% of max, cost $5"}'
KEY = 'a"b$c%d'


def test_c22_what_is_given_arrives_byte_for_byte() -> None:
    # HF_HOME itself may not lie there (C12): the unit could not write to it.
    environment = {"PROMPT_BANNER": 'say "hi" 100%free', "HF_HUB_CACHE": "/srv/model store"}
    made = planned(flags={"json-model-override-args": JSON}, environment=environment)
    assert flags(made)["--json-model-override-args"] == [JSON]
    assert {name: unit(made).environment[name] for name in environment} == environment


def test_c22_the_key_stands_in_a_file_alone() -> None:
    made = planned(key=KEY, host="0.0.0.0")  # noqa: S104 # what needs a key
    assert yaml.safe_load(key_file(KEY)) == {"api-key": KEY}
    assert flags(made)["--config"] == ["/etc/sglang/kimi/secrets.yml"]
    told = (text(made), json.dumps(made.content), repr(made))
    assert [place for place in told if KEY in place.replace("\\", "").replace("%%", "%").replace("$$", "$")] == []
    assert OPTIONS["sglang_server_api_key"]["no_log"] is True


# C24: huggingface/huggingface_hub#2797.


def test_c24_the_model_is_a_folder_that_nobody_asks_a_hub_about() -> None:
    name = "sglang_server_model_path"
    made = instances.planned(instances.wanted(SETTINGS | {name: "/srv/models/some-model"}), RELEASE)
    assert flags(made)["--model-path"] == ["/srv/models/some-model"]
    environment = unit(made).environment
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["HF_HOME"].startswith("/var/cache/sglang/"), "the only part of it that is written to"
    given = {name: "org/some-model"}
    (wrong,), _given = variables.judge(name, OPTIONS[name], "sglang_server", given, DEFAULTS.get(name))
    assert (wrong.id, wrong.severity) == ("settings.path", "error")


def test_c24_a_tree_of_another_user_is_told_with_owner_and_mode(tmp_path: Path) -> None:
    tree = tmp_path / "srv/models/some-model"
    tree.mkdir(parents=True)
    for name, content in tiny_llama.files().items():
        (tree / name).write_bytes(content)
    tree.chmod(0o750)
    stranger = node_facts.Account("sglang", 54321, frozenset({54321}))
    files = node_facts.model_files("/srv/models/some-model", stranger, tmp_path)
    found = rules.judge(NODE_SETTINGS, replace(FIT, model=files), releases.RELEASES[RELEASE])
    (finding,) = (one for one in found if one.severity == "error")
    assert finding.id == "model.unreadable"
    owner = f"{tree.owner()}:{tree.group()} 0750"
    assert finding.seen.startswith("User sglang cannot read ")
    assert f"/srv/models/some-model ({owner})" in finding.seen


# C25: the story.

STORY = {"pipeline_parallel": 8, "cuda_graphs": False, "async_depth": 0, "max_running_requests": 64}


def test_c25_what_slows_the_storys_engine() -> None:
    made = planned(**BOX, **STORY, tuned=False)
    assert ids_of(made, "warning") == ["launch.graphs_disabled", "launch.packed_slot"]
    graphs, packed = (finding for finding in made.findings if finding.severity == "warning")
    assert graphs.remedy == "Remove --disable-cuda-graph"
    assert "takes 8 by default (64 running requests, 8 stages)" in packed.seen
    assert "depth" not in f"{graphs}{packed}"
    with_graphs = ids_of(planned(**BOX, **{**STORY, "cuda_graphs": None}, tuned=False), "warning")
    assert with_graphs == ["launch.graph_batch", "launch.packed_slot"]


@pytest.mark.parametrize("concurrency", [8, 16, 64])
def test_c25_a_planned_pipeline_has_graphs_and_fills_its_slots(concurrency: int) -> None:
    made = planned(**BOX, pipeline_parallel=8, concurrency=concurrency)
    given = {name: int(words[0]) for name, words in flags(made).items() if words and words[0].isdecimal()}
    assert not any("disable" in name for name in flags(made))
    slots = 8 + given["--pp-async-batch-depth"]
    assert given["--max-running-requests"] >= slots * given["--pp-max-micro-batch-size"] >= concurrency
    assert given["--pp-max-micro-batch-size"] <= -(-concurrency // slots)
    assert {finding.severity for finding in made.findings} <= {"info"}


# C28: sgl-project/sglang#39629.


def test_c28_the_barrier_is_foreseen_for_tensor_ranks_alone() -> None:
    slow = planned(preset="kimi-k2-ep8", read_rate=900)
    assert refused(slow) == ["launch.load_barrier"]
    assert re.search(r"take 66\d s, and tensor ranks wait 480 s", errors(slow.findings)[0].seen)
    assert "page cache" in errors(slow.findings)[0].remedy
    assert planned(preset="kimi-k2-pp8", read_rate=900).findings == ()
    assert planned(preset="kimi-k2-ep8", read_rate=6500).findings == ()


# C31: ansible/ansible#26141.


@pytest.mark.parametrize(("release", "sizes"), [(RELEASE, "cuda-graph-bs"), (NEWEST, "cuda-graph-bs-decode")])
def test_c31_what_is_not_set_leaks_into_no_flag(release: str, sizes: str) -> None:
    made = planned(
        release,
        chunked_prefill_size=None,
        trust_remote_code="yes",
        memory_fraction=0.90,
        served_name="kimi k2",
        flags={sizes: [1, 2, 4, 8], "revision": "", "schedule-policy": None},
    )
    assert flags(made) == {
        "--model-path": ["/srv/model"],
        "--served-model-name": ["kimi k2"],
        "--host": ["127.0.0.1"],
        "--port": ["30000"],
        "--mem-fraction-static": ["0.9"],
        "--trust-remote-code": [],
        f"--{sizes}": ["1", "2", "4", "8"],
    }
    assert '--served-model-name "kimi k2"' in text(made)
    assert re.search(r"None|omit|True|False|^ *\[(?!Unit|Service|Install)", text(made), re.MULTILINE) is None
    assert "--trust-remote-code" not in flags(planned(release, trust_remote_code="no"))


@pytest.mark.parametrize("release", [RELEASE, NEWEST])
def test_c31_null_and_nothing_are_no_flag_of_any_kind(release: str) -> None:
    table = flag_tables.load(release)
    own = ("--model-path", "--served-model-name", "--host", "--port")
    names = sorted({table[name].name for name in table.shown if not table[name].refused} - set(own))
    assert len(names) > 300
    bare = flags(planned(release))
    for nothing in (None, "", []):
        assert flags(planned(release, flags={name.removeprefix("--"): nothing for name in names})) == bare
    switches = {name.removeprefix("--"): "no" for name in names if table[name].kind == "switch"}
    negated = {name: words for name, words in flags(planned(release, flags=switches)).items() if name not in bare}
    assert {name: words for name, words in negated.items() if not name.startswith("--no-") or words} == {}
