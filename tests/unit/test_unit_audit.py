# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module unit_audit on units as a node has them: a copy from elsewhere, and one with its virtual environment."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shapes
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import audit
from ansible_collections.inference.sglang.plugins.modules import unit_audit

Read = Callable[..., dict[str, Any]]
FIXTURES = Path(__file__).parent / "fixtures"
TABLE = json.loads((Path(__file__).parents[2] / "roles/sglang/files/flags/0.5.12.post1.json").read_text())
SOURCES = """class ServerArgs:
    def add_cli_args(parser):
        parser.add_argument("--model-path", type=str)
        parser.add_argument("--pipeline-parallel-size", "--pp-size", type=int, default=1)
        parser.add_argument("--attention-backend", type=str)
        parser.add_argument("--api-key", type=str)
        parser.add_argument("--quantization", type=str)
"""


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Read:
    """Call the module with these arguments; its result."""

    def call(check: bool = False, **arguments: object) -> dict[str, Any]:
        with patch_module_args(arguments | {"_ansible_check_mode": check}), pytest.raises(SystemExit):
            unit_audit.main()
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node with a unit, its variables, its virtual environment and its model."""
    site = tmp_path / "venv/lib/python3.12/site-packages"
    sources = site / "sglang/srt"
    (sources / "layers/attention").mkdir(parents=True)
    (sources / "server_args.py").write_text(SOURCES)
    (sources / "layers/attention/triton_backend.py").write_text("token_to_kv_pool.get_value_buffer(0)\n")
    for name in ("sglang-0.5.12.post1", "flashinfer_python-0.6.11.post1", "flashinfer_cubin-0.6.10"):
        (site / f"{name}.dist-info").mkdir()
    (tmp_path / "venv/bin").mkdir()
    for program in ("python", "ninja", "c++", "nvcc"):
        (tmp_path / "venv/bin" / program).touch(mode=0o755)
    (tmp_path / "model").mkdir()
    shutil.copy(shapes.path("kimi-k2.5"), tmp_path / "model/config.json")
    (tmp_path / "variables").write_text("HF_TOKEN=hf_abc\nPROXY=http://me:word@proxy\n")
    (tmp_path / "variables").chmod(0o600)
    (tmp_path / "kimi.service").write_text(
        f"""[Service]
User={getpass.getuser()}
Environment=PATH={tmp_path}/venv/bin
EnvironmentFile={tmp_path}/variables
ExecStart={tmp_path}/venv/bin/python -m sglang.launch_server --model-path {tmp_path}/model --pp-size 8 \\
  --attention-backend triton --api-key hunter2
Restart=always
"""
    )
    return tmp_path


def ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


def test_a_copied_unit_is_judged_by_what_is_given(read: Read) -> None:
    given = {"unit": str(FIXTURES / "story_naive.service"), "release": "0.5.12.post1", "flag_table": TABLE}
    result = read(**given, capability=120, gpus=8, links="pcie", concurrency=8)
    assert result["changed"] is False
    assert {
        "launch.graphs_disabled",
        "launch.patch_layer_probe",
        "launch.packed_slot",
        "launch.nccl_level",
        "audit.stop_timeout",
        "audit.kill_mode",
        "audit.root",
        "audit.exposed",
    } <= set(ids(result))
    assert (result["release"], result["patches"], result["model"]) == ("0.5.12.post1", None, "")
    assert result["interpreter"] == "/root/venv_sglang211/bin/python"
    assert result["flags"]["--disable-cuda-graph"] is True
    assert result["environment"]["NCCL_P2P_LEVEL"] == "5"
    assert result["settings"] == {"Type": ["simple"], "Restart": ["always"]}
    assert read(check=True, **given, capability=120, gpus=8, links="pcie", concurrency=8) == result
    patched = read(**given, capability=120, patches=["triton-layer-probe", "pp-abort"])
    assert "launch.patch_layer_probe" not in ids(patched)


def test_on_the_node_itself_nothing_need_be_given(node: Path, read: Read) -> None:
    result = read(unit=str(node / "kimi.service"), capability=120)
    assert (result["release"], result["patches"]) == ("0.5.12.post1", [])
    assert result["model"] == "KimiK25ForConditionalGeneration"
    assert result["files"] == [str(node / "kimi.service"), str(node / "variables")]
    found = {finding["id"]: finding for finding in result["findings"]}
    assert "stage(s) 2 to 7 of 8" in found["launch.patch_layer_probe"]["seen"]
    assert found["launch.patch_layer_probe"]["severity"] == "error"
    assert "flashinfer-cubin 0.6.10" in found["launch.installed"]["seen"]
    assert "audit.search_path" not in found
    assert found["audit.toolkit"]["severity"] == "warning"


def test_no_secret_is_returned(node: Path, read: Read) -> None:
    result = read(unit=str(node / "kimi.service"))
    assert result["flags"]["--api-key"] == "***"
    assert (result["environment"]["HF_TOKEN"], result["environment"]["PROXY"]) == ("***", "***")
    assert not [secret for secret in ("hunter2", "hf_abc", "word") if secret in json.dumps(result)]
    unit = node / "kimi.service"
    more = "Environment=COPY=hunter2 NOTE=by-hf_abc\nSyslogIdentifier=hunter2\nSetCredential=key:s3cr3t\n"
    unit.write_text(unit.read_text() + more)
    result = read(unit=str(unit))
    assert (result["environment"]["COPY"], result["environment"]["NOTE"]) == ("***", "***")
    assert not [secret for secret in ("hunter2", "hf_abc", "s3cr3t") if secret in json.dumps(result)]


def test_an_interpreter_by_name_is_looked_up_on_the_node(node: Path, read: Read) -> None:
    unit = node / "kimi.service"
    unit.write_text(unit.read_text().replace(f"ExecStart={node}/venv/bin/python", "ExecStart=/usr/bin/env python"))
    result = read(unit=str(unit))
    assert (result["interpreter"], result["release"]) == (f"{node}/venv/bin/python", "0.5.12.post1")


def test_a_user_by_number_has_its_home(node: Path, read: Read) -> None:
    unit = node / "kimi.service"
    by_number = audit.parse(f"[Service]\nUser={os.getuid()}")
    assert unit_audit.host(by_number).home == pwd.getpwuid(os.getuid()).pw_dir
    unit.write_text(unit.read_text().replace(f"User={getpass.getuser()}", "User=a\0b"))
    assert "audit.caches" in ids(read(unit=str(unit)))


def test_sources_with_a_fault_leave_flags_unchecked(node: Path, read: Read) -> None:
    (node / "venv/lib/python3.12/site-packages/sglang/srt/server_args.py").write_text("class (")
    assert "audit.flag_table" in ids(read(unit=str(node / "kimi.service")))
    given = read(unit=str(node / "kimi.service"), flag_table=TABLE)
    assert "audit.flag_table" not in ids(given)


def test_what_the_unit_cannot_reach_is_found_on_the_node(node: Path, read: Read) -> None:
    (node / "venv/bin/ninja").unlink()
    (node / "venv/bin/nvcc").unlink()
    unit = node / "kimi.service"
    unit.write_text(
        unit.read_text().replace("Environment=PATH", f"Environment=CUDA_HOME={node}/gone\nEnvironment=PATH")
    )
    found = {finding["id"]: finding for finding in read(unit=str(unit))["findings"]}
    assert found["audit.search_path"]["seen"].startswith("ninja is not reachable")
    assert found["audit.toolkit"]["severity"] == "error"


def test_a_model_whose_size_cannot_be_told_is_known_by_name(node: Path, read: Read) -> None:
    config = json.loads((node / "model/config.json").read_text())
    (node / "model/config.json").write_text(json.dumps({"architectures": ["Qwen3NextForCausalLM"]}))
    result = read(unit=str(node / "kimi.service"), capability=120)
    assert result["model"] == "Qwen3NextForCausalLM"
    assert "launch.pipeline_model" in ids(result)
    (node / "model/config.json").write_text("[")
    assert read(unit=str(node / "kimi.service"))["model"] == ""
    (node / "other").mkdir()
    (node / "other/config.json").write_text(json.dumps(config))
    other = read(unit=str(node / "kimi.service"), model_path=str(node / "other"))
    assert other["model"] == "KimiK25ForConditionalGeneration"


def test_sources_that_cannot_be_read_leave_flags_as_they_are_written(node: Path, read: Read) -> None:
    shutil.rmtree(node / "venv/lib/python3.12/site-packages/sglang")
    unit = node / "kimi.service"
    unit.write_text(unit.read_text().replace(f"User={getpass.getuser()}", "User=nobody-of-this-name"))
    result = read(unit=str(unit))
    assert result["patches"] is None
    assert result["flags"]["--pp-size"] == "8"
    assert "launch.patch_layer_probe" in ids(result)
    assert "audit.caches" in ids(result)


def test_a_unit_that_is_not_there(read: Read) -> None:
    result = read(unit="/nowhere/kimi.service")
    assert result["failed"] is True
    assert "There is no unit /nowhere/kimi.service" in result["msg"]
