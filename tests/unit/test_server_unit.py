# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The unit that the role's template writes: what it says, and what systemd makes of it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest
from ansible.plugins.filter.core import FilterModule as Core
from ansible_collections.inference.sglang.plugins.filter import units as filters
from ansible_collections.inference.sglang.plugins.module_utils import flags
from ansible_collections.inference.sglang.plugins.module_utils.units import parse_unit
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables
from hypothesis import given
from hypothesis import strategies as st
from test_units import HARD, TEXT

ROLE = Path(__file__).parents[2] / "roles" / "sglang_server"
TEXT_OF_TEMPLATE = (ROLE / "templates" / "sglang.service.j2").read_text(encoding="utf-8")
PLAN: dict[str, Any] = {
    "name": "tiny",
    "user": "sglang",
    "bin_path": "/opt/sglang/bin",
    "release_path": "/opt/sglang/releases/r",
    "cuda_home": "/opt/sglang/toolkits/t/nvidia/cu13",
    "jit_cache": "/var/cache/sglang/r-t",
    "model_path": "/var/lib/sglang/models/m/1",
    "url": "http://127.0.0.1:30000",
    "command": ["/opt/sglang/releases/r/bin/python", "-m", "sglang.launch_server"],
    "arguments": [["--pp-size", "8"]],
    "environment": {"NCCL_P2P_LEVEL": "SYS"},
    "secrets": "",
    "start_timeout": 1980,
    "stop_timeout": 600,
    "restart_limit": 5,
    "restart_interval": 12950,
}


def compiled() -> jinja2.Template:
    """As ansible.builtin.template has it."""
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)  # noqa: S701
    environment.filters["relpath"] = Core().filters()["relpath"]
    environment.filters |= {f"inference.sglang.{name}": call for name, call in filters.FilterModule().filters().items()}
    return environment.from_string(TEXT_OF_TEMPLATE)


TEMPLATE = compiled()


def render(**changes: object) -> str:
    return TEMPLATE.render(plan=PLAN | changes, ansible_managed="managed")


def service(**changes: object) -> Mapping[str, list[str]]:
    """The settings of [Service], every value in order."""
    found: dict[str, list[str]] = {}
    for name, value in parse_unit(render(**changes)).sections["Service"]:
        found.setdefault(name, []).append(value)
    return found


NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True)


@given(st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=5), st.dictionaries(NAMES, TEXT, max_size=5))
def test_the_engine_gets_what_the_plan_says(arguments: list[list[str]], environment: dict[str, str]) -> None:
    read = parse_unit(render(arguments=arguments, environment=environment))
    assert read.argv == PLAN["command"] + [word for argument in arguments for word in argument]
    assert read.environment == environment
    assert read.findings == []


def test_json_and_percent_signs_arrive() -> None:
    """C22: supacloud#269 and its like."""
    value = '{"rope_scaling": {"factor": 2.0}, "note": "50% of max, cost $5"}'
    environment = {"PROMPT_BANNER": 'say "hi" 100%free', "HF_HOME": "/srv/model store"}
    read = parse_unit(render(arguments=[["--json-model-override-args", value]], environment=environment))
    assert read.argv[-2:] == ["--json-model-override-args", value]
    assert read.environment == environment


def test_what_is_not_set_leaks_into_no_flag() -> None:
    """C31: ansible/ansible#26141."""
    wanted = {
        "chunked-prefill-size": None,
        "cuda-graph-bs": [1, 2, 4, 8],
        "trust-remote-code": "yes",
        "enable-metrics": False,
        "revision": "",
        "mem-fraction-static": 0.90,
        "served-model-name": "kimi k2",
        "schedule-policy": None,
    }
    text = render(arguments=flags.arguments(wanted, flag_tables.load("0.5.12.post1")))
    assert parse_unit(text).argv[3:] == [
        *("--cuda-graph-bs", "1", "2", "4", "8"),
        "--trust-remote-code",
        *("--mem-fraction-static", "0.9"),
        *("--served-model-name", "kimi k2"),
    ]
    assert '--served-model-name "kimi k2"' in text
    assert re.search(r"None|omit|True|False|^ *\[(?!Unit|Service|Install)", text, re.MULTILINE) is None


@pytest.mark.parametrize("value", [None, True, ["a"], {"a": 1}])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(Exception, match="Give text or a number"):
        render(arguments=[["--pp-size", value]])
    with pytest.raises(Exception, match="Give text or a number"):
        render(environment={"A": value})


def test_every_flag_stands_on_its_own_line() -> None:
    text = render(arguments=[["--pp-size", "8"], ["--trust-remote-code"]])
    assert "launch_server \\\n  --pp-size 8 \\\n  --trust-remote-code\n" in text


def test_limits_stand_in_the_unit_and_a_start_that_hangs_ends() -> None:
    """C20: a service reads no limits.conf, and its start has 90 s unless it says otherwise."""
    found = service()
    assert found["Type"] == ["exec"]
    assert found["TimeoutStartSec"] == ["1980"]
    assert found["TimeoutStopSec"] == ["600"]
    assert (found["LimitMEMLOCK"], found["LimitNOFILE"]) == (["infinity"], ["1048576"])
    assert (found["TasksMax"], found["OOMScoreAdjust"]) == (["infinity"], ["-500"])
    assert [name for name, values in found.items() if name.startswith("Timeout") and "infinity" in values] == []


def test_orphans_end_with_the_engine_and_a_start_beside_them_is_refused() -> None:
    """C21: sgl-project/sglang#16756."""
    found = service()
    assert found["KillMode"] == ["mixed"]
    assert "SendSIGKILL" not in found
    program = "/opt/sglang/releases/r/bin/python /opt/sglang/bin/check-free http://127.0.0.1:30000"
    assert found["ExecStartPre"][-1] == program
    for name in ("check-free", "wait-ready"):
        assert (ROLE / "files" / name).is_file()


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, Any]:
    """A plan whose programs are there, as systemd wants to see them."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to("/bin/true")
    return {"command": [str(python), *PLAN["command"][1:]]}


# Of the unit's shape: with a key, with words that need quotes, and as it is.
SHAPES = {
    "plain": {},
    "keyed": {"arguments": [["--config", "/etc/sglang/tiny/secrets.yml"]], "secrets": "/etc/sglang/tiny/secrets.yml"},
    "quoted": {
        "arguments": [["--x", *(word for word in HARD if "\n" not in word)]],
        "environment": {"A": "50% \"of\" $5 'x' \\", "B": "naïve 模型"},
    },
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@each_shape
def test_systemd_finds_nothing_wrong(tmp_path: Path, installed: dict[str, Any], shape: dict[str, Any]) -> None:
    unit = tmp_path / "sglang-tiny.service"
    unit.write_text(render(**shape | installed), encoding="utf-8")
    verified = analyze("verify", "--man=no", str(unit))
    # Of other units of this machine it may say something, too.
    assert [line for line in verified.splitlines() if "sglang-tiny" in line] == []


@each_shape
def test_exposure_is_low(tmp_path: Path, shape: dict[str, Any]) -> None:
    unit = tmp_path / "sglang-tiny.service"
    unit.write_text(render(**shape), encoding="utf-8")
    shown = analyze("security", "--offline=true", "--no-pager", str(unit))
    exposure = re.search(r"Overall exposure level for \S+: (\d+\.\d+)", shown)
    assert exposure, shown
    assert float(exposure[1]) <= 4.5


def test_the_devices_of_the_gpus_stay_open() -> None:
    """systemd.exec(5): PrivateDevices= and ProtectClock= imply a DevicePolicy= that closes all others."""
    found = service()
    closing = {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow", "MemoryDenyWriteExecute"}
    assert closing & set(found) == set()
    # PyTorch shares memory of expandable segments by pidfd_getfd, and NCCL binds threads to the GPU's CPUs.
    denied = " ".join(found["SystemCallFilter"])
    assert denied.startswith("~")
    assert not {"@debug", "@resources", "@privileged", "@process", "@ipc"} & set(denied.lstrip("~").split())


def test_the_template_only_loops() -> None:
    assert set(re.findall(r"\{%-? (\w+)", TEXT_OF_TEMPLATE)) == {"for", "endfor"}


def analyze(*words: str) -> str:
    environment = {**os.environ, "SYSTEMD_COLORS": "0", "SYSTEMD_EMOJI": "0"}
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False, env=environment)
    return done.stdout + done.stderr


def test_a_model_under_way_is_no_model() -> None:
    fetched = render(asserted_paths=["/srv/50%/.model_weights/manifest.json"])
    assert "\nAssertPathExists=/srv/50%%/.model_weights/manifest.json\n" in fetched
    assert "Assert" not in render()
