# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The filters that write units: once through ansible-playbook, their faults by calling them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleError, AnsibleFilterError
from ansible_collections.inference.sglang.plugins.filter import units
from ansible_collections.inference.sglang.plugins.module_utils.units import parse_unit
from ansible_collections.inference.sglang.plugins.plugin_utils import flag_tables

ROOT = Path(__file__).parents[2]

UNIT = """\
[Service]
Environment={{ 'BANNER' | inference.sglang.systemd_environment(banner) }}
ExecStart=/bin/python{% for argument in flags | inference.sglang.sglang_arguments('0.5.12.post1') %} \\
  {{ argument | map('inference.sglang.systemd_exec') | join(' ') }}{% endfor %}
"""


def test_settings_of_a_play_become_a_unit(tmp_path: Path) -> None:
    """Values that are templates are resolved, also deep inside a list or a mapping."""
    variables = {
        "stages": 8,
        "banner": 'say "hi" 100%free',
        "flags": {
            "pp-size": "{{ stages }}",
            "cuda-graph-bs": [1, "{{ stages }}"],
            "revision": "{{ none }}",
            "trust-remote-code": True,
            "json-model-override-args": {
                "note": "50% of $5",
                "sizes": ["{{ stages }}", {"all": "{{ flags['pp-size'] }}"}],
            },
        },
    }
    task = {"name": "Write the unit", "ansible.builtin.copy": {"content": UNIT, "dest": str(tmp_path / "unit")}}
    play = {"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": [task]}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    environment = {**os.environ, "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    command = ["ansible-playbook", "-i", "localhost,", "-c", "local", str(tmp_path / "play.yml")]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)

    text = (tmp_path / "unit").read_text(encoding="utf-8")
    assert "\n  --pp-size 8 \\\n" in text
    read = parse_unit(text)
    assert read.argv[:7] == ["/bin/python", "--pp-size", "8", "--cuda-graph-bs", "1", "8", "--trust-remote-code"]
    assert read.argv[7:] == ["--json-model-override-args", '{"note":"50% of $5","sizes":[8,{"all":8}]}']
    assert read.environment == {"BANNER": 'say "hi" 100%free'}


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(AnsibleFilterError) as caught:
        units.sglang_arguments({"pp_size": 8, "port": "x", "host": "::1"}, "0.5.12.post1")
    assert "Write --pp-size" in str(caught.value)
    assert "--port takes a whole number" in str(caught.value)


def test_a_deprecated_flag_does_not_stop_the_run() -> None:
    assert units.sglang_arguments({"stream-output": True}, "0.5.12.post1") == [["--stream-output"]]


@pytest.mark.parametrize("value", [True, None, [1], {"a": 1}])
def test_only_text_and_numbers_are_quoted(value: object) -> None:
    with pytest.raises(AnsibleFilterError, match="text or a number"):
        units.systemd_exec(value)
    with pytest.raises(AnsibleFilterError, match="A: Give text or a number"):
        units.systemd_environment("A", value)
    assert (units.systemd_exec(0.9), units.systemd_environment("A", 8)) == ("0.9", "A=8")


def test_flags_must_be_a_mapping() -> None:
    with pytest.raises(AnsibleFilterError, match="mapping, not list"):
        units.sglang_arguments(["--pp-size 8"], "0.5.12.post1")


def test_an_unknown_release_lists_the_known() -> None:
    with pytest.raises(AnsibleError, match=r"release\.unknown.*0\.5\.12\.post1"):
        flag_tables.load("0.5.99")
    with pytest.raises(AnsibleFilterError, match=r"release\.unknown"):
        units.sglang_arguments({}, "../../../etc/passwd")


@pytest.mark.parametrize("name", units.FilterModule().filters())
def test_every_filter_is_documented_beside_the_code(name: str) -> None:
    document = yaml.safe_load((ROOT / "plugins" / "filter" / f"{name}.yml").read_text(encoding="utf-8"))
    assert document["DOCUMENTATION"]["name"] == name
    assert set(document) == {"DOCUMENTATION", "EXAMPLES", "RETURN"}
