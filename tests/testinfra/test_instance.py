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


def test_exposure_is_low(host, plan, fact):
    """``--threshold`` is younger than systemd 249."""
    shown = host.check_output(f"systemd-analyze security --no-pager sglang-{plan['name']}.service")
    exposure = re.search(r"Overall exposure level for \S+: (\d+\.\d+)", shown)
    assert exposure, shown[-500:]
    fact("exposure", exposure[1])
    assert float(exposure[1]) <= 4.5


def test_processes_belong_to_the_service_user(host, plan, unit):
    assert host.process.get(pid=int(unit["MainPID"])).user == plan["user"]


def test_listens_on_loopback_only(host, plan, fact):
    port = plan["url"].rpartition(":")[2]
    addresses = {row.split()[3] for row in host.check_output(f"ss -Hltn sport = :{port}").splitlines()}
    assert addresses == {plan["url"].removeprefix("http://")}
    fact("listens on", ", ".join(addresses))


def test_completes_a_text(host, plan, fact):
    status, content = ask(host, plan, plan.get("secrets") or "")
    assert status == 200, content
    answer = json.loads(content)
    assert answer["usage"]["completion_tokens"] == 8
    fact("completes", ascii(answer["choices"][0]["text"]))


def test_refuses_whoever_has_no_key(host, plan, fact):
    if not plan.get("secrets"):
        pytest.skip("the instance has no API key")
    assert ask(host, plan, "")[0] == 401
    fact("without its key", "refused")


def ask(host, plan, key_file: str) -> tuple[int, str]:
    """Status and content of a completion, with the key of a file: it is read on the node, and seen nowhere else."""
    body = {"model": plan["served_name"], "prompt": "Hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    output = host.run("python3 -c %s %s %s %s", ASK, f"{plan['url']}/v1/completions", json.dumps(body), key_file)
    assert output.rc == 0, output.stderr
    status, _newline, content = output.stdout.partition("\n")
    return int(status), content


ASK = """
import json, sys, urllib.error, urllib.request
url, body, path = sys.argv[1:]
headers = {"Content-Type": "application/json"}
if path:
    with open(path) as file:
        headers["Authorization"] = "Bearer " + json.load(file)["api-key"]
try:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer = direct.open(urllib.request.Request(url, body.encode(), headers), timeout=120)
except urllib.error.HTTPError as refusal:
    answer = refusal
print(answer.status)
print(answer.read().decode())
"""


def test_the_key_is_nowhere_but_in_its_file(host, plan, fact):
    """Not in an argument list, an environment, the unit as systemd shows it, the journal, or another file."""
    path = plan.get("secrets")
    if not path:
        pytest.skip("the instance has no API key")
    file = host.file(path)
    assert (file.user, file.group, oct(file.mode)) == ("root", plan["user"], "0o640")
    found = host.run("python3 -c %s %s %s", FIND, path, f"sglang-{plan['name']}.service")
    assert found.rc == 0, found.stderr
    *places, looked = found.stdout.splitlines()
    assert places == []
    fact("API key", f"in {path} alone, of {looked}")


# The key itself must not leave the node: only where it was found is printed, and last how much was looked at.
FIND = r"""
import glob, json, os, stat, subprocess, sys
path, unit = sys.argv[1:]
key = json.load(open(path))["api-key"]
texts = {form.encode() for form in (key, repr(key)[1:-1], json.dumps(key)[1:-1])}
places = {}
processes = glob.glob("/proc/[0-9]*")
for process in processes:
    for name in ("cmdline", "environ"):
        try:
            places[process + "/" + name] = open(process + "/" + name, "rb").read()
        except OSError:
            pass
journal = ["journalctl", "--unit", unit, "--output=cat"]
for command in (["systemctl", "show", unit], ["journalctl", "--output=export"], journal):
    places[" ".join(command)] = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
for root in ("/etc", "/run/systemd", "/tmp", "/var/tmp", "/var/log", "/root"):
    for folder, _folders, names in os.walk(root):
        for name in names:
            file = os.path.join(folder, name)
            if os.path.isfile(file) and not os.path.islink(file) and file != path and os.path.getsize(file) < 10 ** 7:
                places[file] = open(file, "rb").read()
for place, content in places.items():
    if any(text in content for text in texts):
        print(place)
print(len(places), "places")
"""


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
