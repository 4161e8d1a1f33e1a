# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The running instance: unit settings in force, process, address, an answer."""

from __future__ import annotations

import json
import re
import shlex

import pytest


@pytest.fixture
def unit(host, plan):
    """Properties of the unit as systemd has them in force."""
    return host.service(f"sglang-{plan['name']}").systemd_properties


def test_unit_runs_and_starts_with_the_node(host, plan, unit, fact):
    service = host.service(f"sglang-{plan['name']}")
    assert service.is_running
    assert service.is_enabled
    fact("unit", f"sglang-{plan['name']}.service {unit['ActiveState']}, {unit['NRestarts']} restarts")


def test_unit_is_the_one_that_runs(host, plan, unit):
    assert unit["NeedDaemonReload"] == "no"
    environment = host.file(f"/proc/{unit['MainPID']}/environ").content.split(b"\0")
    assert f"SGLANG_PLAN_DIGEST={plan['digest']}".encode() in environment


def test_command_is_the_plan(host, plan, unit):
    command = host.file(f"/proc/{unit['MainPID']}/cmdline").content_string.rstrip("\0").split("\0")
    assert command == plan["command"] + [word for argument in plan["arguments"] for word in argument]


def test_unit_says_what_the_plan_says(plan, unit):
    """What the next start would run, should someone have edited the unit since."""
    words = plan["command"] + [word for argument in plan["arguments"] for word in argument]
    assert f"argv[]={' '.join(words)} ;" in unit["ExecStart"]
    assert dict(word.split("=", 1) for word in shlex.split(unit["Environment"])) == plan["environment"]


def test_what_runs_is_recorded_as_good(host, plan, fact):
    """What a later upgrade that fails puts back."""
    folder, unit = f"/etc/sglang/{plan['name']}", f"sglang-{plan['name']}.service"
    assert host.file(f"{folder}/good/plan.json").content == host.file(f"{folder}/plan.json").content
    assert host.file(f"{folder}/good/{unit}").content == host.file(f"/etc/systemd/system/{unit}").content
    previous = host.file(f"{folder}/previous/plan.json")
    if previous.exists:
        fact("goes back to", json.loads(previous.content_string)["release_path"].rpartition("/")[2])


def test_stop_drains(plan, unit):
    assert unit["KillMode"] == "mixed"
    assert "KILL" in unit["SuccessExitStatus"]
    assert "KILL" in unit["RestartForceExitStatus"]
    assert seconds(unit["TimeoutStopUSec"]) == plan["stop_timeout"]


def test_start_has_a_limit(plan, unit):
    assert seconds(unit["TimeoutStartUSec"]) == plan["start_timeout"]
    assert unit["StartLimitBurst"] == str(plan["restart_limit"])


def seconds(span: str) -> int:
    """Seconds of a time span as systemctl shows it: ``10min 5s``."""
    sizes = {"h": 3600, "min": 60, "s": 1}
    parts = [re.fullmatch(r"(\d+)(h|min|s)", part) for part in span.split()]
    assert all(parts), span
    return sum(int(part[1]) * sizes[part[2]] for part in parts)


def test_unit_is_hardened(host, plan, unit, fact):
    assert unit["User"] == plan["user"]
    assert unit["NoNewPrivileges"] == "yes"
    assert unit["ProtectSystem"] == "strict"
    assert unit["ProtectHome"] == "yes"
    assert unit["PrivateTmp"] == "yes"
    assert unit["RestrictNamespaces"] == "yes"
    assert unit["DevicePolicy"] == "auto"  # any other closes the devices of the GPUs
    assert "DeviceAllow" not in unit
    assert "CapabilityBoundingSet" not in unit  # systemctl leaves out what is empty
    fact("runs as", unit["User"])


def test_processes_belong_to_the_service_user(host, plan, unit):
    assert host.process.get(pid=int(unit["MainPID"])).user == plan["user"]


def test_listens_on_loopback_only(host, plan, fact):
    port = plan["url"].rpartition(":")[2]
    addresses = {row.split()[3] for row in host.check_output(f"ss -Hltn sport = :{port}").splitlines()}
    assert addresses == {plan["url"].removeprefix("http://")}
    fact("listens on", ", ".join(addresses))


def test_completes_a_text(host, plan, fact):
    body = {"model": plan["served_name"], "prompt": "Hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    script = (
        "import json,sys,urllib.request as u;"
        "o=u.build_opener(u.ProxyHandler({}));"
        "r=u.Request(sys.argv[1],sys.argv[2].encode(),{'Content-Type':'application/json'});"
        "print(o.open(r,timeout=120).read().decode())"
    )
    output = host.run("python3 -c %s %s %s", script, f"{plan['url']}/v1/completions", json.dumps(body))
    assert output.rc == 0, output.stderr
    answer = json.loads(output.stdout)
    assert answer["usage"]["completion_tokens"] == 8
    fact("completes", ascii(answer["choices"][0]["text"]))


def test_files_have_safe_modes(host, plan):
    unit = f"sglang-{plan['name']}.service"
    for path in (f"/etc/sglang/{plan['name']}", f"/etc/sglang/{plan['name']}/good"):
        folder = host.file(path)
        assert (folder.user, oct(folder.mode)) == ("root", "0o755")
    for name in ("plan.json", "good/plan.json", f"good/{unit}", f"../../systemd/system/{unit}"):
        file = host.file(f"/etc/sglang/{plan['name']}/{name}")
        assert (file.user, oct(file.mode)) == ("root", "0o644")


def test_packages_are_installed(host):
    for package in ("gcc", "g++", "libnuma1", "python3-dev"):
        assert host.package(package).is_installed
