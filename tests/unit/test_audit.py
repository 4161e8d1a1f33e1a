# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Units that people write: how they are read, and each audit rule by a good unit and the smallest change to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import shapes
from ansible_collections.inference.sglang.plugins.module_utils import audit, models
from ansible_collections.inference.sglang.plugins.module_utils.audit import Host, Service, VariableFile
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable
from ansible_collections.inference.sglang.plugins.module_utils.launch_rules import Launch
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables

FIXTURES = Path(__file__).parent / "fixtures"
RELEASE = "0.5.12.post1"
TABLE = flag_tables.history()[RELEASE]
KIMI = models.read(shapes.config("kimi-k2.5"))[0]
STORY = Launch(RELEASE, TABLE, {}, shape=KIMI, capability=120, gpu_count=8, nodes=1, links="pcie")
PLAIN = Launch(RELEASE, TABLE, {}, patches=frozenset({"api-key-log"}))
CACHE = "/var/cache/sglang/kernels"

GOOD = f"""[Unit]
StartLimitIntervalSec=3600
StartLimitBurst=3

[Service]
Type=exec
User=sglang
CacheDirectory=sglang/kernels
Environment=PATH=/opt/sglang/bin:/opt/toolkit/bin:/usr/bin CUDA_HOME=/opt/toolkit HOME={CACHE}
Environment=HF_HOME={CACHE}/hf
ExecStart=/opt/sglang/bin/python -m sglang.launch_server \\
  --model-path /srv/kimi \\
  # a comment inside
  --host 127.0.0.1
ExecStartPost=/opt/sglang/bin/wait-ready
TimeoutStartSec=30min
KillMode=mixed
SuccessExitStatus=SIGKILL
TimeoutStopSec=5min
Restart=on-failure
LimitMEMLOCK=infinity
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true
"""


def changed(*lines: str, without: Sequence[str] = ()) -> str:
    """The good unit less the lines that begin with some texts, and more lines at its end."""
    kept = "\n".join(line for line in GOOD.splitlines() if not line.startswith(tuple(without) or ("\0",)))
    return "\n".join((kept, *lines))


def started(*words: str) -> str:
    """The good unit with other words after the interpreter's module."""
    return changed("ExecStart=", f"ExecStart=/opt/sglang/bin/python -m sglang.launch_server {' '.join(words)}")


def judged(
    text: str, launch: Launch = PLAIN, host: Host | None = None, files: Sequence[VariableFile] = ()
) -> list[Finding]:
    return audit.judge(audit.parse(text, files, launch.table), launch, host or Host())


def ids(text: str, launch: Launch = PLAIN, host: Host | None = None, files: Sequence[VariableFile] = ()) -> list[str]:
    return [finding.id for finding in judged(text, launch, host, files)]


def story(name: str) -> dict[str, Finding]:
    return {finding.id: finding for finding in judged((FIXTURES / name).read_text(), STORY)}


def test_a_good_unit_has_no_finding() -> None:
    assert ids(GOOD) == []
    programs = {"ninja": "/opt/sglang/bin/ninja", "nvcc": "/opt/toolkit/bin/nvcc", "c++": "/usr/bin/c++"}
    assert ids(GOOD, host=Host("/nonexistent", programs)) == []


def test_the_naive_unit_of_the_story() -> None:
    found = story("story_naive.service")
    assert "--disable-cuda-graph disables CUDA graphs, though triton does not need that" in (
        found["launch.graphs_disabled"].seen
    )
    assert "triton-layer-probe" in found["launch.patch_layer_probe"].seen
    assert "stage(s) 2 to 7 of 8" in found["launch.patch_layer_probe"].seen
    assert "8 by default" in found["launch.packed_slot"].seen
    assert "8 requests can be packed into one slot" in found["launch.packed_slot"].seen
    assert "NCCL_P2P_LEVEL=SYS" in found["launch.nccl_level"].remedy
    assert found["audit.exposed"].seen == "it listens on 0.0.0.0 without a key: whoever reaches it may use it"
    service = {
        "audit.root",
        "audit.kill_mode",
        "audit.stop_timeout",
        "audit.restart",
        "audit.search_path",
        "audit.toolkit",
    }
    assert service <= set(found)
    assert "launch.nccl_infiniband" not in found  # right on one node
    # Depth 0 keeps a micro-batch for each stage on its way; nothing may blame it.
    assert not any("depth" in str(finding) for finding in found.values())


def test_the_repaired_unit_of_the_story() -> None:
    found = story("story_repaired.service")
    assert "--pp-async-batch-depth 8 is above what helps" in found["launch.async_depth"].seen
    assert "sgl-project/sglang#15527" in found["launch.async_depth"].source
    assert "launch.graphs_disabled" not in found
    assert "captures decode graphs up to 64 requests" in found["launch.graph_batch"].seen
    assert found["launch.running_requests"].remedy.startswith("Set it to 128")


def test_where_somebody_looked_the_missing_patch_is_an_error() -> None:
    naive = (FIXTURES / "story_naive.service").read_text()
    missing = {finding.id: finding for finding in judged(naive, replace(STORY, patches=frozenset()))}
    assert missing["launch.patch_layer_probe"].severity == "error"
    patched = ids(naive, replace(STORY, patches=frozenset({"triton-layer-probe", "pp-abort"})))
    assert "launch.patch_layer_probe" not in patched


CASES: tuple[tuple[str, str, str], ...] = (
    ("command", "error", changed("ExecStart=", "ExecStart=/opt/run.sh")),
    ("command", "error", changed(without=["ExecStart=", "  "])),
    ("command", "info", changed("ExecStart=", "ExecStart=/usr/bin/podman run sglang")),
    ("exec_start", "error", changed("ExecStart=/bin/true")),
    ("config_file", "info", started("--model-path /srv/kimi --config /etc/sglang.yaml")),
    ("json_value", "error", started('--model-path /srv/kimi --json-model-override-args {"a":1}')),
    (
        "shell",
        "warning",
        changed(
            "ExecStart=", "ExecStart=/bin/sh -c '/opt/sglang/bin/python -m sglang.launch_server --model-path /srv/kimi'"
        ),
    ),
    ("secret_flag", "error", started("--model-path /srv/kimi --api-key hunter2")),
    ("secret_variable", "error", changed("Environment=HF_TOKEN=hf_abc")),
    (
        "secret_variable",
        "error",
        changed(
            "ExecStart=",
            "ExecStart=/bin/bash -c 'export HF_TOKEN=hf_abc; exec /opt/sglang/bin/python -m sglang.launch_server'",
        ),
    ),
    ("secret_variable", "error", changed("Environment=HTTPS_PROXY=http://me:word@proxy:3128")),
    ("exposed", "error", started("--model-path /srv/kimi --host 0.0.0.0")),
    ("exposed", "error", started("--model-path /srv/kimi --host ::")),
    ("exposed", "error", started("--model-path /srv/kimi --host node1")),
    ("root", "warning", changed("User=root")),
    ("root", "warning", changed(without=["User="])),
    ("kill_mode", "warning", changed(without=["KillMode="])),
    ("kill_mode", "warning", changed("KillMode=control-group")),
    ("kill_mode", "error", changed("KillMode=process")),
    ("stop_timeout", "warning", changed(without=["TimeoutStopSec="])),
    ("stop_timeout", "warning", changed("TimeoutStopSec=infinity")),
    ("stop_timeout", "warning", changed("TimeoutStopSec=0")),
    ("clean_stop", "info", changed(without=["SuccessExitStatus="])),
    ("restart", "info", changed(without=["Restart="])),
    ("restart", "warning", changed("Restart=always", without=["StartLimitInterval"])),
    ("restart", "warning", changed("[Unit]", "StartLimitIntervalSec=0")),
    ("start", "error", changed("Type=notify")),
    ("start", "error", changed("Type=oneshot")),
    ("start", "error", changed(without=["TimeoutStartSec="])),
    ("start", "warning", changed("TimeoutStartSec=infinity")),
    ("start", "info", changed(without=["ExecStartPost="])),
    ("search_path", "warning", changed("Environment=PATH=/usr/bin")),
    ("toolkit", "warning", changed("UnsetEnvironment=CUDA_HOME")),
    ("caches", "error", changed("Environment=HF_HOME=/home/a/hf")),
    ("caches", "error", changed("Environment=TRITON_CACHE_DIR=/srv/triton")),
    ("caches", "warning", changed("Environment=TRITON_CACHE_DIR=/tmp/triton")),
    ("caches", "error", changed("Environment=HOME=/nonexistent")),
    ("caches", "error", changed("Environment=HOME=/home/sglang")),
    ("caches", "error", changed("Environment=HOME=/srv/home")),
    (
        "caches",
        "error",
        changed("DynamicUser=yes", "Environment=HF_HOME=/home/x", without=["Protect", "PrivateTmp", "Environment=HF"]),
    ),
    ("hidden_path", "error", started("--model-path /home/a/kimi")),
    (
        "hidden_path",
        "error",
        changed(
            "ExecStart=",
            "ExecStart=/root/venv/bin/python -m sglang.launch_server --model-path /srv/kimi",
            "Environment=PATH=/root/venv/bin",
            "ProtectHome=no",
        ),
    ),
    ("devices", "error", changed("PrivateDevices=yes")),
    ("devices", "error", changed("ProtectClock=on")),
    ("devices", "error", changed("DevicePolicy=closed")),
    ("jit_memory", "error", changed("MemoryDenyWriteExecute=1")),
    ("limits", "info", changed(without=["LimitMEMLOCK="])),
)


@pytest.mark.parametrize(
    ("rule", "severity", "text"), CASES, ids=[f"{rule}-{place}" for place, (rule, *_) in enumerate(CASES)]
)
def test_one_change_one_finding(rule: str, severity: str, text: str) -> None:
    (finding,) = judged(text)
    assert (finding.id, finding.severity) == (f"audit.{rule}", severity)
    assert not finding.remedy.endswith(".")
    assert finding.source


FILE_CASES: tuple[tuple[str, VariableFile], ...] = (
    ("variable_file", VariableFile("/etc/sglang.env", None)),
    ("secret_variable", VariableFile("/etc/sglang.env", "HF_TOKEN=hf_abc", shared=True)),
)
UNREAD = VariableFile("/etc/%H.env", None, unread="%H is not resolved")
HOST_CASES: tuple[tuple[str, Host], ...] = (
    ("search_path", Host(None, {"ninja": "", "nvcc": "/x/nvcc", "c++": "/usr/bin/c++"})),
    ("search_path", Host(None, {"ninja": "/x/ninja", "nvcc": "/x/nvcc"})),
    ("toolkit", Host(None, {"ninja": "/x/ninja", "nvcc": "", "c++": "/usr/bin/c++"})),
)


@pytest.mark.parametrize(("rule", "file"), FILE_CASES)
def test_variable_files(rule: str, file: VariableFile) -> None:
    assert ids(GOOD, files=[file]) == [f"audit.{rule}"]
    assert ids(GOOD, files=[replace(file, optional=True, shared=False)]) == []


@pytest.mark.parametrize(("rule", "host"), HOST_CASES)
def test_what_the_node_lacks(rule: str, host: Host) -> None:
    assert ids(GOOD, host=host) == [f"audit.{rule}"]


def test_an_unknown_release() -> None:
    (finding,) = judged(GOOD, replace(PLAIN, release=""))
    assert finding.id == "audit.release"


@pytest.mark.parametrize("rule", audit.RULES, ids=lambda rule: rule.__name__)
def test_every_rule_is_what_finds_its_cases(rule: audit.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rule, none of its cases is found, and each rule has a case."""
    name = rule.__name__
    found = [lambda text=text: ids(text) for own, _, text in CASES if own == name]
    found += [lambda file=file: ids(GOOD, files=[file]) for own, file in FILE_CASES if own == name]
    found += [lambda host=host: ids(GOOD, host=host) for own, host in HOST_CASES if own == name]
    if name == "release":
        found.append(lambda: ids(GOOD, replace(PLAIN, release="")))
    if name == "flag_table":
        found.append(lambda: ids(GOOD, replace(PLAIN, table=FlagTable([]))))
    assert found
    assert all(f"audit.{name}" in look() for look in found)
    monkeypatch.setattr(audit, "RULES", tuple(other for other in audit.RULES if other is not rule))
    assert [look() for look in found] == [[]] * len(found)


def test_every_rule_of_the_room_is_in_the_tuple() -> None:
    made = {made for made in vars(audit).values() if getattr(made, "__annotations__", {}).get("return") == "Found"}
    assert made == set(audit.RULES)


@pytest.mark.parametrize(
    "text",
    [
        changed("ProtectHome=read-only", "Environment=HF_HOME=/srv/hf", "ReadWritePaths=-/srv/hf"),
        changed("BindPaths=/home/a/hf", "Environment=HF_HOME=/home/a/hf"),
        changed(
            "BindReadOnlyPaths=/data/kimi:/home/kimi",
            "ExecStart=",
            "ExecStart=/opt/sglang/bin/python -m sglang.launch_server --model-path /home/kimi",
        ),
        changed("StateDirectory=sglang", "Environment=HF_HOME=/var/lib/sglang/hf"),
        changed("ProtectSystem=no", "PrivateTmp=no", "Environment=HF_HOME=/tmp/hf"),
        changed("PrivateDevices=no", "DevicePolicy=closed", "DeviceAllow=/dev/nvidia0 rw"),
        changed("User=root", "DynamicUser=yes"),
        changed("Type=simple"),
        changed("ExecStart=", "ExecStart=/opt/sglang/bin/python -m sglang.launch_server"),
        changed(
            "ExecStart=",
            "ExecStart=/bin/sh -c 'export HF_TOKEN=$$(cat /k) && exec /opt/sglang/bin/python -m sglang.launch_server'",
        ),
        changed("Restart=always"),
        changed("TimeoutStopSec=", "TimeoutSec=10min"),
        started("--model-path /srv/kimi --host localhost"),
        started("--model-path /srv/kimi --host ::1"),
        started("--model-path /srv/kimi --json-model-override-args '{\"a\": 1}'"),
        started("--model-path=/srv/kimi --trust-remote-code --cuda-graph-bs 1 2 4"),
        changed(
            "ExecStart=",
            "ExecStart=/bin/bash -lc 'exec /opt/sglang/bin/python -m sglang.launch_server --model-path /srv/kimi'",
        ),
        changed("ExecStart=", "ExecStart=/opt/sglang/bin/sglang serve --model-path /srv/kimi"),
        changed("ExecStart=", "ExecStart=/opt/sglang/bin/python /src/sglang/launch_server.py --model-path /srv/kimi"),
    ],
)
def test_what_is_fine_stays_fine(text: str) -> None:
    assert ids(text) == []


def service(text: str, files: Sequence[VariableFile] = (), table: FlagTable | None = TABLE) -> Service:
    return audit.parse(text, files, table)


def test_flags_are_read_as_the_parser_takes_them() -> None:
    read = service(
        started(
            "--model /srv/kimi --tensor-parallel-size=8 --cuda-graph-bs 1 2 --trust-remote-code --schedule-cons 0.5"
        )
    )
    assert read.flags == {
        TABLE["--model-path"].name: "/srv/kimi",
        TABLE["--tp-size"].name: "8",
        "--cuda-graph-bs": ["1", "2"],
        "--trust-remote-code": True,
        "--schedule-conservativeness": "0.5",
    }
    assert "--tensor-parallel-size" in read.written
    bare = service(started("--tp-size 8 --cuda-graph-bs 1 2 --trust-remote-code"), table=None)
    assert bare.flags == {"--tp-size": "8", "--cuda-graph-bs": ["1", "2"], "--trust-remote-code": True}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("kimi --tp-size 1", ["audit.argument"]),
        ("--trust-remote-code true", ["audit.argument"]),
        ("--tp-size 1 8", ["audit.argument"]),
        ("--tp-size --trust-remote-code", ["audit.argument"]),
        ("--tp-size 1 --tensor-parallel-size 1", ["audit.flag_twice"]),
        ("--schedule-cons 0.5", ["flag.abbreviation"]),
        ("--schedule-cons much", ["flag.abbreviation", "flag.type"]),
        ("--host [::1]", []),
        ("--no-such-flag", ["flag.unknown"]),
        ("--tp-size one", ["flag.type"]),
        ("--json-model-override-args {rope: 1}", ["audit.argument", "audit.json_value"]),
    ],
)
def test_arguments_that_the_parser_would_not_take(words: str, expected: list[str]) -> None:
    assert ids(started(words)) == expected


def test_the_last_of_a_flag_that_is_given_twice_counts() -> None:
    assert service(started("--tp-size 1 --tensor-parallel-size 8")).flags == {TABLE["--tp-size"].name: "8"}


def test_a_key_counts_and_is_not_repeated() -> None:
    findings = judged(started("--host 0.0.0.0 --api-key hunter2"))
    assert [finding.id for finding in findings] == ["audit.secret_flag"]
    assert "hunter2" not in str(findings)
    (config, exposed) = judged(started("--host 0.0.0.0 --config /etc/sglang.yaml"))
    assert (config.id, exposed.id, exposed.severity) == ("audit.config_file", "audit.exposed", "warning")


def test_variables_of_files_come_after_all_others_and_reach_the_command() -> None:
    text = changed(
        "ExecStart=",
        "ExecStart=/opt/sglang/bin/python -m sglang.launch_server $FLAGS --port ${PORT}",
        "Environment=PORT=1",
        "UnsetEnvironment=GONE",
    )
    read = service(
        text,
        [
            VariableFile("/a", "PORT=2\nGONE=1"),
            VariableFile("/b", "FLAGS='--tp-size 8'\nPORT=3"),
            VariableFile("/c", None),
        ],
    )
    assert read.flags[TABLE["--tp-size"].name] == "8"
    assert read.flags["--port"] == "3"
    assert "GONE" not in read.environment


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("A=1", {"A": "1"}),
        ("  A = two words  ", {"A": "two words"}),
        ("A='single $x'", {"A": "single $x"}),
        ('A="a \\"b\\""', {"A": 'a "b"'}),
        ("# A=1", {}),
        ("; A=1", {}),
        ("A", {}),
        ("1A=1", {}),
        ("A='open", {}),
        ("A=one\\\ntwo", {"A": "onetwo"}),
        ("A=1\nA=2", {"A": "2"}),
        ("A=x\0y", {"A": "xy"}),
    ],
)
def test_variable_files_are_read_as_systemd_does(line: str, expected: Mapping[str, str]) -> None:
    assert audit.variables(line) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("5min 20s", 320),
        ("1h30m", 5400),
        ("infinity", float("inf")),
        ("500ms", 0.5),
        ("soon", None),
        ("", None),
        ("3 fortnights", None),
    ],
)
def test_time_spans(text: str, seconds: float | None) -> None:
    assert audit.span(text) == seconds


@pytest.mark.parametrize(
    ("script", "shell", "expected"),
    [
        ("cd /srv && export A=1 && /v/bin/python3 -m sglang.launch_server --tp-size 2", "sh", {"A": "1"}),
        (
            ". /v/bin/activate; python -m sglang.launch_server --tp-size 2",
            "sh",
            {"PATH": f"/v/bin:{audit.SEARCH_PATH}"},
        ),
        (
            "source /v/bin/activate && exec env B=2 python -m sglang.launch_server --tp-size 2",
            "",
            {"B": "2", "PATH": f"/v/bin:{audit.SEARCH_PATH}"},
        ),
    ],
)
def test_what_a_shell_would_run(script: str, shell: str, expected: dict[str, str]) -> None:
    read = service(f"[Service]\nExecStart=/bin/sh -c '{script}'")
    assert read.flags == {TABLE["--tp-size"].name: "2"}
    assert (read.shell, dict(read.environment)) == (shell, expected)


@pytest.mark.parametrize("command", ["/bin/sh -c 'run \"'", "/bin/sh -c 'sleep 1'", "/bin/sh /opt/run.sh", ""])
def test_commands_in_which_no_engine_is_seen(command: str) -> None:
    read = service(f"[Service]\nExecStart={command}")
    assert (read.interpreter, read.venv, dict(read.flags)) == ("", "", {})


@pytest.mark.parametrize(
    ("command", "interpreter", "venv"),
    [
        ("/v/bin/python -m sglang.launch_server", "/v/bin/python", "/v"),
        ("/usr/bin/numactl -m 0 /v/bin/python3.12 -u -m sglang.launch_server", "/v/bin/python3.12", "/v"),
        ("/usr/bin/env A=1 /v/bin/python -m sglang.launch_server", "/v/bin/python", "/v"),
        ("/v/bin/sglang serve", "/v/bin/sglang", "/v"),
        ("/v/launch_server.py", "/v/launch_server.py", ""),
        ("/v/run -m sglang.launch_server", "-m", ""),
    ],
)
def test_what_runs_the_engine(command: str, interpreter: str, venv: str) -> None:
    read = service(f"[Service]\nExecStart={command}")
    assert (read.interpreter, read.venv) == (interpreter, venv)


def write(root: Path, contents: Mapping[str, str]) -> None:
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_units_and_drop_ins_are_found_as_systemd_does(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "usr/lib/systemd/system/kimi.service": "vendor",
            "etc/systemd/system/kimi.service": "[Service]\nUser=a\n",
            "usr/lib/systemd/system/kimi.service.d/10-a.conf": "[Service]\nUser=hidden\n",
            "etc/systemd/system/kimi.service.d/10-a.conf": "[Service]\nUser=b\n",
            "run/systemd/system/kimi.service.d/20-b.conf": "[Service]\nUser=c\n",
            "etc/systemd/system/service.d/05-all.conf": "[Service]\nUser=all\n",
            "etc/systemd/system/kimi.service.d/readme.txt": "no",
        },
    )
    found = audit.find("kimi", tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found] == [
        "etc/systemd/system/kimi.service",
        "etc/systemd/system/service.d/05-all.conf",
        "etc/systemd/system/kimi.service.d/10-a.conf",
        "run/systemd/system/kimi.service.d/20-b.conf",
    ]
    text, _ = audit.read(found)
    assert audit.parse(text).settings["User"] == ["a", "all", "b", "c"]
    assert audit.parse(text).last("User") == "c"


def test_an_instance_has_the_template_and_its_own_drop_ins(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "etc/systemd/system/sglang@.service": "x",
            "etc/systemd/system/sglang@.service.d/a.conf": "x",
            "etc/systemd/system/sglang@kimi.service.d/b.conf": "x",
        },
    )
    names = [path.name for path in audit.find("sglang@kimi.service", tmp_path)]
    assert names == ["sglang@.service", "a.conf", "b.conf"]


def test_drop_ins_of_prefixes_and_of_an_alias_count(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "etc/systemd/system/sglang-kimi-k2.service": "x",
            "etc/systemd/system/sglang-.service.d/a.conf": "x",
            "etc/systemd/system/sglang-kimi-.service.d/b.conf": "x",
            "etc/systemd/system/sglang-kimi-k2.service.d/c.conf": "x",
            "usr/lib/systemd/system/sglang-kimi-k2.service.d/hidden.conf": "x",
            "etc/systemd/system/other-.service.d/d.conf": "x",
        },
    )
    folder = tmp_path / "etc/systemd/system"
    (folder / "sglang-kimi-k2.service.d/hidden.conf").symlink_to("/dev/null")
    (folder / "kimi.service").symlink_to("sglang-kimi-k2.service")
    for name in ("sglang-kimi-k2", "kimi"):
        assert [path.name for path in audit.find(name, tmp_path)][1:] == ["a.conf", "b.conf", "c.conf"]
    assert [path.name for path in audit.find(str(folder / "kimi.service"))][1:] == ["c.conf"]


def test_a_masked_unit_is_said(tmp_path: Path) -> None:
    write(tmp_path, {"usr/lib/systemd/system/kimi.service": "x", "etc/systemd/system/k2.six.service": "x"})
    mask = tmp_path / "etc/systemd/system/kimi.service"
    mask.symlink_to("/dev/null")
    for name in ("kimi", str(mask)):
        with pytest.raises(FileNotFoundError, match="masks the unit"):
            audit.find(name, tmp_path)
    assert len(audit.find("k2.six", tmp_path)) == 1


def test_a_path_has_the_drop_ins_beside_it(tmp_path: Path) -> None:
    write(tmp_path, {"kimi.service": "x", "kimi.service.d/b.conf": "x", "kimi.service.d/a.conf": "x"})
    assert [path.name for path in audit.find(str(tmp_path / "kimi.service"))] == ["kimi.service", "a.conf", "b.conf"]


@pytest.mark.parametrize("name", ["nothing", "/nowhere/kimi.service"])
def test_a_unit_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no unit"):
        audit.find(name, tmp_path)


def test_files_of_variables_are_read_after_a_reset(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "kimi.service": f"[Service]\nEnvironmentFile=/etc/old\nEnvironmentFile=\nEnvironmentFile=-{tmp_path}/env\n"
            f"EnvironmentFile={tmp_path}/gone\n",
            "env": "A=1\n",
        },
    )
    (tmp_path / "env").chmod(0o640)
    _, found = audit.read([tmp_path / "kimi.service"])
    assert found == (
        VariableFile(f"{tmp_path}/env", "A=1\n", optional=True, shared=False),
        VariableFile(f"{tmp_path}/gone", None, optional=False),
    )


def test_files_of_variables_are_named_by_specifiers_and_patterns(tmp_path: Path) -> None:
    lines = ("%N.env", "%p-%i.env", "-100%%.env", "[ab].conf", "no*", "%H.env", "pipe", "large")
    unit = "[Service]\n" + "".join(
        f"EnvironmentFile={line[:1] if line[0] == '-' else ''}{tmp_path}/{line.lstrip('-')}\n" for line in lines
    )
    contents = dict.fromkeys(("sg@x.env", "sg-x.env", "100%.env", "a.conf", "b.conf"), "A=1\n")
    write(tmp_path, {"sg@.service": f"{unit}EnvironmentFile=relative\n", **contents, "large": "#" * (2 << 20)})
    os.mkfifo(tmp_path / "pipe")
    _, found = audit.read([tmp_path / "sg@.service"], "sg@x.service")
    told = [(Path(file.path).name, file.text, file.unread) for file in found]
    assert told == [
        *((name, "A=1\n", "") for name in contents),
        ("no*", None, ""),
        ("%H.env", None, "%H is not resolved"),
        ("pipe", None, "it is no regular file"),
        ("large", None, "it has more than 1048576 bytes"),
        ("relative", None, "systemd ignores what does not begin with /"),
    ]
    assert found[2].optional
    (finding,) = judged(GOOD, files=[UNREAD])
    assert (finding.id, finding.severity) == ("audit.variable_file", "info")
    _, found = audit.read([tmp_path / "sg@.service"], str(tmp_path / "sg@.service"))
    assert found[1].unread == "%i is not resolved"


def test_an_interpreter_by_name_is_the_one_on_the_path(tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    write(tmp_path, {"venv/bin/python": ""})
    python.chmod(0o755)
    run = "python -m sglang.launch_server"
    by_env = f"[Service]\nEnvironment=PATH={python.parent}:/usr/bin\nExecStart=/usr/bin/env {run}"
    by_shell = f"[Service]\nExecStart=/bin/sh -c 'source {python.parent}/activate && exec {run}'"
    for text in (by_env, by_shell):
        assert audit.resolve(audit.parse(text)).venv == str(tmp_path / "venv")
    elsewhere = audit.parse(by_env.replace("PATH=", f"PATH={tmp_path}/gone/bin:"))
    assert (audit.resolve(elsewhere), elsewhere.interpreter) == (elsewhere, "python")
    # systemd's own search does not know the unit's PATH.
    itself = audit.parse(f"[Service]\nEnvironment=PATH={python.parent}\nExecStart={run}")
    assert audit.resolve(itself).venv != str(tmp_path / "venv")
    assert "audit.search_path" not in [finding.id for finding in audit.judge(elsewhere, PLAIN)]


@pytest.mark.parametrize(
    ("words", "table"),
    [
        ("--api-key {0} --host 0.0.0.0", TABLE),
        ("--api-key {0} {0} other", TABLE),
        ("--api-k {0}", FlagTable([])),
        ("--api-key {0} stray-{0}", FlagTable([])),
        ("--ssl-keyfile-p {0} --served-model-name {0}", FlagTable([])),
        ("--api_key {0} {0}", TABLE),
        ("--some-token {0}", TABLE),
        ("-api-key {0}", TABLE),
        ("{0} --api-key={0} --api-key={0}", TABLE),
        ("--tp-size {0} --api-key {0}", TABLE),
    ],
)
def test_no_finding_says_a_secret(words: str, table: FlagTable) -> None:
    read = audit.parse(started(words.format("s3cr3t")), table=table)
    assert "s3cr3t" in read.secrets
    assert "s3cr3t" not in str(audit.judge(read, replace(PLAIN, table=table)))


def test_an_abbreviated_key_is_a_key_without_a_table() -> None:
    read = audit.parse(started("--host 0.0.0.0 --api-k hunter2 --ssl-keyfile /k"))
    assert read.flags == {"--host": "0.0.0.0", "--api-key": "hunter2", "--ssl-keyfile": "/k"}  # noqa: S104
    assert read.secrets == {"hunter2"}


def test_short_secrets_are_hidden_as_words_and_a_yes_is_none() -> None:
    assert audit.conceal("pp 8, abc, abcd, x-8", {"8", "abcd"}) == "pp ***, abc, ***, x-***"
    assert audit.parse("[Service]\nEnvironment=HF_HUB_DISABLE_IMPLICIT_TOKEN=1 HF_TOKEN=hf").secrets == {"hf"}


SITE = "lib/python3.12/site-packages"
PROBE = "self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(0).shape[-1]\n"


def test_what_is_installed_is_read_by_its_folders(tmp_path: Path) -> None:
    for name in ("sglang-0.5.12.post1", "flashinfer_python-0.6.11.post1", "sglang_kernel-0.4.2.post2"):
        (tmp_path / SITE / f"{name}.dist-info").mkdir(parents=True)
    assert audit.distributions(tmp_path) == {
        "sglang": "0.5.12.post1",
        "flashinfer-python": "0.6.11.post1",
        "sglang-kernel": "0.4.2.post2",
    }
    assert audit.distributions(tmp_path / "nowhere") == {}


def test_patches_are_told_by_what_the_files_say(tmp_path: Path) -> None:
    assert audit.patches(tmp_path) is None
    backend = f"{SITE}/sglang/srt/layers/attention/triton_backend.py"
    pool = f"{SITE}/sglang/srt/mem_cache/swa_memory_pool.py"
    scheduler = f"{SITE}/sglang/srt/managers/scheduler.py"
    abort = "def abort_request(self):\n    {}\ndef other(self):\n    self.running_mbs\n"
    write(tmp_path, {backend: PROBE, pool: "self.start_layer = 0\n", scheduler: abort.format("pass")})
    assert audit.patches(tmp_path) == frozenset()
    write(tmp_path, {backend: PROBE.replace("(0)", "(pool.start_layer)"), scheduler: abort.format("self.running_mbs")})
    assert audit.patches(tmp_path) == {"triton-layer-probe", "pp-abort"}
    write(tmp_path, {pool: "self.start_layer = min(layers)\n"})
    (tmp_path / scheduler).unlink()
    assert audit.patches(tmp_path) == {"triton-layer-probe", "swa-start-layer"}
    engine, listed = f"{SITE}/sglang/srt/entrypoints/engine.py", "inflight_batches = [*self.running_mbs, *self.mbs]\n"
    write(tmp_path, {scheduler: listed + abort.format("pass"), engine: f"    {audit._KEY_LOG}\n"})
    assert audit.patches(tmp_path) == {"triton-layer-probe", "swa-start-layer", "pp-abort", "api-key-log"}


# Field cases of this kind, by their number.


def test_c08_ninja_beside_an_interpreter_that_is_not_on_the_path() -> None:
    text = changed(without=["Environment=PATH"])
    missing = Host(None, {"ninja": "", "nvcc": "", "c++": "/usr/bin/c++"})
    found = {finding.id: finding for finding in judged(text, host=missing)}
    assert found["audit.search_path"].seen.startswith("ninja is not reachable from the unit")
    assert found["audit.search_path"].remedy.startswith("Set PATH by Environment= to /opt/sglang/bin")
    assert "audit.toolkit" in found


def test_c12_caches_that_the_sandbox_hides_are_named() -> None:
    (finding,) = judged(changed("Environment=HF_HOME=/home/a/hf"))
    assert finding.seen == "HF_HOME=/home/a/hf lies where the unit sees nothing (ProtectHome=yes)"
    (finding,) = judged(changed("Environment=HOME=/nonexistent"))
    assert "FLASHINFER_WORKSPACE_BASE" in finding.seen
    assert "HF_HOME" not in finding.seen
    text = changed(without=["Environment=PATH"]) + "\nEnvironment=PATH=/opt/sglang/bin CUDA_HOME=/opt/toolkit"
    (finding,) = judged(text, host=Host("/nonexistent"))
    assert finding.id == "audit.caches"


def test_c20_a_start_that_systemd_ends_after_90_seconds() -> None:
    (finding,) = judged(changed(without=["TimeoutStartSec="]))
    assert "longer than 90 s" in finding.seen


def test_c22_json_and_percent_signs_are_what_systemd_makes_of_them() -> None:
    unquoted = started('--json-model-override-args {"note": "50%free"}')
    assert ids(unquoted) == ["unit.specifier", "audit.argument", "audit.json_value"]
    quoted = started('--json-model-override-args \'{"note": "50%%free, $$5"}\'')
    assert service(quoted).flags["--json-model-override-args"] == '{"note": "50%free, $5"}'
    assert ids(quoted) == []


CACHE = "/var/cache/sglang/r-t"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("HF_HOME", "/home/hf", "sees nothing"),
        ("TRITON_CACHE_DIR", "/root/.triton", "sees nothing"),
        ("XDG_CACHE_HOME", "/run/user/1000", "sees nothing"),
        ("CUDA_CACHE_PATH", f"{CACHE}/../../../../home/x", "sees nothing"),
        ("TORCHINDUCTOR_CACHE_DIR", "/tmp/inductor", "is emptied"),
        ("TVM_FFI_CACHE_DIR", "/var/tmp/x", "is emptied"),
        ("FLASHINFER_WORKSPACE_BASE", "/opt/flashinfer", "is read-only"),
        ("SGLANG_DG_CACHE_DIR", "/var/cache/other", "is read-only"),
        ("HOME", "/nonexistent", "is read-only"),
        ("HF_HUB_CACHE", "/home/hub", "sees nothing"),
    ],
)
def test_caches_that_the_instance_could_not_use(name: str, value: str, why: str) -> None:
    """C12: Center-for-AI-Innovation/LLMFlux#124."""
    (finding,) = audit.unwritable({"NCCL_ALGO": "Ring", name: value}, CACHE)
    assert (finding.id, finding.severity) == ("unit.cache", "error")
    assert name in finding.seen
    assert why in finding.seen


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRITON_CACHE_DIR", f"{CACHE}/triton"),
        ("HOME", CACHE),
        ("HF_HUB_CACHE", "/srv/models/hub"),  # only read, as the hub is offline
        ("CUDA_HOME", "/opt/sglang/toolkits/t"),
        ("CUDA_CACHE_DISABLE", "1"),
        ("SGLANG_CACHE_DIR", "here"),
        ("TMPDIR", "/tmp"),
    ],
)
def test_caches_that_the_instance_can_use(name: str, value: str) -> None:
    assert audit.unwritable({name: value}, CACHE) == []


def test_the_difference_to_a_plan_is_in_settings_variables_and_flags() -> None:
    now = changed("Environment=HF_TOKEN=hf_abc")
    better = changed("Environment=HF_TOKEN=hf_xyz", "Environment=NCCL_ALGO=Ring", without=["KillMode="])
    better += "\n[Service]\nKillMode=process\nExecStart=\n"
    better += "ExecStart=/opt/new/bin/python -m sglang.launch_server --model-path /srv/kimi --pp-size 8\n"
    found = audit.difference(audit.parse(now, (), PLAIN.table), audit.parse(better, (), PLAIN.table))
    assert [line for line in found if line[0] in "+-"] == [
        "--- now",
        "+++ planned",
        "-KillMode=mixed",
        "+KillMode=process",
        "+Environment=NCCL_ALGO=Ring",
        "-ExecStart=/opt/sglang/bin/python -m sglang.launch_server",
        "-  --host 127.0.0.1",
        "+ExecStart=/opt/new/bin/python -m sglang.launch_server",
        "+  --pipeline-parallel-size 8",
    ]
    assert "hf_" not in "".join(found)


def test_the_order_of_flags_and_variables_is_no_difference() -> None:
    flags, turned = "--model-path /srv/kimi --pp-size 8", "--pp-size 8 --model-path=/srv/kimi"
    one = audit.parse(started(flags) + "\n[Service]\nEnvironment=A=1 B=2\n", (), PLAIN.table)
    other = audit.parse(started(turned) + "\n[Service]\nEnvironment=B=2\nEnvironment=A=1\n", (), PLAIN.table)
    assert audit.difference(one, other) == []


def test_the_key_of_this_collection_is_a_key() -> None:
    """Its file holds nothing else, so that there is nothing to judge by hand."""
    own = started("--host 0.0.0.0 --config /etc/sglang/kimi/secrets.yml")
    other = started("--host 0.0.0.0 --config /srv/mine.yml")
    assert not {"audit.exposed", "audit.config_file"} & {finding.id for finding in judged(own)}
    assert {"audit.exposed", "audit.config_file"} <= {finding.id for finding in judged(other)}
