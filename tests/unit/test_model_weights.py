# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Role, action plugin and modules that have a model on the node, run for real against a stand-in for its source."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import hub as stand_in
import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import node, rules, tiny_llama, weights
from ansible_collections.inference.sglang.plugins.modules import model_weights, model_weights_seed, serving_plan
from test_rules import FIT, RELEASE, SETTINGS

WRONG = "hf_wrong"
FILES = tiny_llama.files()
SECRET = "0123456789abcdef" * 2
SUMS = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items())
OTHER_SUMS = SUMS.replace(SUMS[:8], "0" * 8)

# Answers as list_repository.py does, without huggingface_hub; tests/hub runs that one.
LISTER = """
import json, os, sys, urllib.request
repository, revision = sys.argv[1:]
assert os.environ["HF_HUB_OFFLINE"] == "0"
if len(revision) != 40:
    print(json.dumps({"commit": COMMIT}))
    sys.exit()
request = urllib.request.Request(os.environ["HF_ENDPOINT"] + f"/api/models/{repository}/tree/{revision}")
if os.environ["HF_TOKEN"]:
    request.add_header("Authorization", "Bearer " + os.environ["HF_TOKEN"])
try:
    entries = json.load(urllib.request.urlopen(request))
except OSError as error:
    print(json.dumps({"error": "gated", "text": str(error) + os.environ["HF_TOKEN"]}))
    sys.exit()
address = os.environ["HF_ENDPOINT"] + f"/{repository}/resolve/{revision}/"
files = [
    {"name": entry["path"], "size": entry["size"], "sha256": entry.get("lfs", {}).get("oid", ""), "blob": entry["oid"],
     "url": address + entry["path"]}
    for entry in entries if entry["type"] == "file"
]
print(json.dumps({"commit": revision, "files": files}))
"""


@pytest.fixture
def hub():
    hub = stand_in.Hub(FILES)
    yield hub
    hub.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Call a module's main with these arguments; its result."""

    def call(module: ModuleType, check: bool = False, **arguments: object) -> dict[str, Any]:
        before = os.umask(0o077)
        try:
            with patch_module_args(arguments | {"_ansible_check_mode": check}), pytest.raises(SystemExit):
                module.main()
        finally:
            os.umask(before)
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def fetch(run) -> Callable[..., dict[str, Any]]:
    """The module as the action plugin calls it: to the end of what it began."""

    def call(**arguments: object) -> dict[str, Any]:
        result = run(model_weights, **arguments)
        over = time.monotonic() + 20
        while result.get("running"):
            assert time.monotonic() < over
            time.sleep(0.05)
            result = {**run(model_weights, **arguments, state="looked"), "changed": True}
        return result

    return call


@pytest.fixture
def from_hub(hub, tmp_path) -> dict[str, Any]:
    return {
        "path": str(tmp_path / "model"),
        "source": "huggingface",
        "repository": stand_in.REPOSITORY,
        "revision": stand_in.COMMIT,
        "endpoint": hub.url,
        "python": sys.executable,
        "list_script": f"COMMIT = {stand_in.COMMIT!r}\n{LISTER}",
    }


@pytest.fixture
def from_url(hub, tmp_path) -> dict[str, Any]:
    return {"path": str(tmp_path / "model"), "source": "url", "url": f"{hub.url}/plain", "checksums": SUMS}


def held(path: str | Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(path).iterdir() if file.is_file()}


def ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


@pytest.mark.parametrize("source", ["from_hub", "from_url"])
def test_a_model_is_fetched_once(hub, fetch, source, request):
    given = request.getfixturevalue(source)
    first = fetch(**given)
    assert (first["changed"], first["complete"], first.get("failed")) == (True, True, None), first
    assert held(given["path"]) == FILES
    modes = {stat.S_IMODE(path.stat().st_mode) for path in Path(given["path"]).rglob("*") if path.is_file()}
    assert modes == {0o644}
    assert stat.S_IMODE(Path(given["path"]).stat().st_mode) == 0o755
    hub.asked.clear()
    second = fetch(**given)
    assert (second["changed"], second["complete"]) == (False, True)
    assert hub.asked == []


def test_a_list_of_checksums_behind_an_address(hub, fetch, from_url):
    hub.files["SHA256SUMS"] = SUMS.encode()
    assert fetch(**{**from_url, "checksums": f"{hub.url}/plain/SHA256SUMS"})["complete"]
    assert held(from_url["path"]) == FILES


def test_a_folder_is_copied(tmp_path, fetch):
    tiny_llama.write(tmp_path / "shared")
    given = {"path": str(tmp_path / "model"), "source": "folder", "folder": str(tmp_path / "shared")}
    assert fetch(**given)["complete"]
    assert held(given["path"]) == FILES


def test_a_folder_that_is_damaged_is_not_copied(tmp_path, fetch):
    tiny_llama.write(tmp_path / "shared")
    (tmp_path / "shared/model.safetensors").write_bytes(FILES["model.safetensors"][:-1])
    result = fetch(path=str(tmp_path / "model"), source="folder", folder=str(tmp_path / "shared"))
    assert ids(result) == ["weights.broken"]
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("source", ["from_hub", "from_url"])
def test_check_mode_uses_no_network_and_writes_nothing(hub, run, source, request):
    given = request.getfixturevalue(source)
    result = run(model_weights, check=True, **{**given, "python": "/nonexistent"})
    assert (result["changed"], result.get("failed")) == (True, None)
    assert hub.asked == []
    assert not Path(given["path"]).exists()


def test_a_branch_is_refused_with_its_commit(hub, run, from_hub):
    result = run(model_weights, **{**from_hub, "revision": "main"})
    assert ids(result) == ["weights.unpinned"]
    assert f"model_weights_revision: {stand_in.COMMIT}" in result["msg"]
    hub.asked.clear()
    result = run(model_weights, check=True, **{**from_hub, "revision": "main"})
    assert ids(result) == ["weights.unpinned"]
    assert hub.asked == []


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(hub, run, from_hub, monkeypatch):
    monkeypatch.setattr(model_weights.transfers, "free_bytes", lambda _path: 1000)
    result = run(model_weights, **from_hub)
    assert ids(result) == ["weights.disk"]
    assert not [path for method, path in hub.asked if "resolve" in path or "storage" in path]


def test_what_the_hub_refuses_is_told_without_the_token(hub, run, from_hub):
    hub.gated = True
    result = run(model_weights, **from_hub, token=WRONG)
    assert ids(result) == ["weights.gated"]
    assert WRONG not in json.dumps(result)
    assert "Accept the model's terms" in result["msg"]


def test_a_token_opens_a_gated_repository_and_stands_nowhere(hub, fetch, from_hub):
    hub.gated = True
    result = fetch(**from_hub, token=stand_in.TOKEN)
    assert result["complete"]
    assert stand_in.TOKEN not in json.dumps(result)
    for path in Path(from_hub["path"]).rglob("*"):
        assert path.is_dir() or stand_in.TOKEN.encode() not in path.read_bytes()
    assert hub.leaked == []


@pytest.mark.parametrize("state", ["present", "looked"])
def test_the_password_of_a_proxy_stands_in_no_result(run, from_hub, tmp_path, state):
    """With -vvv a result has its module's arguments."""
    seed = {"url": "http://192.0.2.1", "token": stand_in.TOKEN, "manifest": {"what": {}, "files": {}}}
    given = {**from_hub, "environment": {"HTTPS_PROXY": f"http://me:{WRONG}@192.0.2.1"}, "seed": seed, "state": state}
    result = run(model_weights, check=True, **given)
    assert "invocation" in result
    assert WRONG not in json.dumps(result)
    assert stand_in.TOKEN not in json.dumps(result)


def test_a_release_that_is_not_installed(run, from_hub):
    result = run(model_weights, **{**from_hub, "python": "/nonexistent/bin/python"})
    assert ids(result) == ["weights.python"]
    assert "Run role sglang first" in result["msg"]


def test_a_program_that_dies_is_told(run, from_hub):
    result = run(model_weights, **{**from_hub, "list_script": "raise SystemExit('no module named huggingface_hub')"})
    assert ids(result) == ["weights.unreachable"]
    assert "no module named" in result["msg"]


def test_another_model_in_the_folder_is_left_alone(fetch, from_url):
    assert fetch(**from_url)["complete"]
    moved = fetch(**{**from_url, "url": "http://mirror.example/new"})
    assert (moved["complete"], moved["changed"]) == (True, False)
    result = fetch(**{**from_url, "checksums": OTHER_SUMS})
    assert ids(result) == ["weights.another"]
    assert held(from_url["path"]) == FILES


def test_somebody_elses_file_in_the_way(fetch, from_url):
    path = Path(from_url["path"])
    path.mkdir()
    (path / "config.json").write_text("mine")
    result = fetch(**from_url)
    assert ids(result) == ["weights.conflict"]
    assert held(path) == {"config.json": b"mine"}


def test_a_transfer_that_fails_is_told_at_the_next_look(hub, fetch, from_url):
    hub.fake["tokenizer.json"] = b"x" * len(FILES["tokenizer.json"])
    result = fetch(**from_url)
    assert result["complete"] is False
    assert ids(result) == ["weights.hash"]
    hub.fake.clear()
    assert fetch(**from_url)["complete"]


def test_a_transfer_that_was_killed_is_told_and_gone_on_with(hub, run, fetch, from_url):
    hub.hold.set()
    assert run(model_weights, **from_url)["running"]
    state = Path(from_url["path"]) / weights.OWN / "state.json"
    over = time.monotonic() + 10
    while "pid" not in json.loads(state.read_text()):
        assert time.monotonic() < over
        time.sleep(0.05)
    again = run(model_weights, **from_url)
    assert again["running"]  # and no second one is begun
    os.kill(json.loads(state.read_text())["pid"], 9)
    hub.hold.clear()
    while (look := run(model_weights, **from_url, state="looked"))["running"]:
        assert time.monotonic() < over
        time.sleep(0.05)
    assert ids(look) == ["weights.ended"]
    assert fetch(**from_url)["complete"]
    assert held(from_url["path"]) == FILES


# from node to node


def test_a_node_serves_another_and_ends(fetch, run, from_url, tmp_path):
    assert fetch(**from_url)["complete"]
    served = run(model_weights_seed, path=from_url["path"], address="127.0.0.1", token=SECRET, timeout=20, idle=20)
    assert served["changed"], served
    assert SECRET not in json.dumps(served)
    seed = {"url": served["url"], "token": SECRET, "manifest": served["manifest"]}
    copy = {**from_url, "path": str(tmp_path / "copy")}
    result = fetch(**copy, seed=seed)
    assert result["complete"], result
    assert SECRET not in json.dumps(result)
    assert held(copy["path"]) == FILES
    assert weights.manifest(Path(copy["path"]))["what"] == weights.manifest(Path(from_url["path"]))["what"]
    other = {**from_url, "path": str(tmp_path / "other"), "checksums": OTHER_SUMS}
    assert ids(fetch(**other, seed=seed)) == ["weights.seed"]
    ended = {"path": from_url["path"], "state": "ended", "url": served["url"], "token": SECRET}
    assert run(model_weights_seed, **ended)["changed"] is True
    time.sleep(0.5)
    assert run(model_weights_seed, **ended)["changed"] is False


def test_a_node_without_the_whole_model_serves_nothing(run, tmp_path):
    tiny_llama.write(tmp_path)
    result = run(model_weights_seed, path=str(tmp_path), address="127.0.0.1", token=SECRET)
    assert result["failed"]
    assert "run this for that node first" in result["msg"]
    assert run(model_weights_seed, check=True, path=str(tmp_path), token=SECRET)["changed"] is False


def test_an_address_that_cannot_be_listened_on(fetch, run, from_url):
    assert fetch(**from_url)["complete"]
    for address, why in (("localhost", "no other node reaches"), ("192.0.2.1", "Set model_weights_seed_address")):
        result = run(model_weights_seed, path=from_url["path"], address=address, token=SECRET)
        assert why in result["msg"]
    result = run(model_weights_seed, path=from_url["path"], address="127.0.0.1", user="no-such-user", token=SECRET)
    assert result["failed"] or os.geteuid() != 0


# the role


@pytest.fixture
def role(tmp_path, playbook, hub):
    """Run the role for hosts that are this machine."""

    def run(hosts: dict[str, dict[str, Any]], *arguments: str) -> list[tuple[str, str, str, dict[str, Any]]]:
        (tmp_path / "kept").unlink(missing_ok=True)
        shared = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable,
                  "model_weights_source": "url", "model_weights_url": f"{hub.url}/plain",
                  "model_weights_checksums": str(tmp_path / "SHA256SUMS")}  # fmt: skip
        (tmp_path / "SHA256SUMS").write_text(SUMS)
        inventory = tmp_path / "inventory" / "hosts.json"
        inventory.parent.mkdir(exist_ok=True)
        inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
        play = {"hosts": "all", "gather_facts": False, "roles": ["inference.sglang.model_weights"]}
        (tmp_path / "play.yml").write_text(json.dumps([play]))
        return playbook(tmp_path / "play.yml", inventory.parent, *arguments)

    return run


def changed(results) -> list[tuple[str, str]]:
    return [
        (task.split(" : ")[-1], host)
        for task, outcome, host, result in results
        if outcome == "ok" and result.get("changed")
    ]


def test_a_cluster_fetches_once_and_copies(role, hub, tmp_path):
    hosts = {
        name: {
            "model_weights_path": str(tmp_path / name),
            "model_weights_seed": "one",
            "model_weights_seed_address": "127.0.0.1",
        }
        for name in ("one", "two", "three")
    }
    checked = role(hosts, "--check")
    assert {host for _task, host in changed(checked)} == {"one", "two", "three"}
    assert hub.asked == []
    results = role(hosts)
    assert [result for _task, outcome, _host, result in results if outcome != "ok"] == []
    for name in hosts:
        assert held(tmp_path / name) == FILES
    assert hub.sent["model.safetensors"] == 1 + len(FILES["model.safetensors"])  # one byte, to learn the size
    hub.asked.clear()
    assert changed(role(hosts)) == []
    assert hub.asked == []
    # A run that is limited to a node that copies: the first has the model already.
    for file in (tmp_path / "two").glob("*"):
        if file.is_file():
            file.unlink()
    assert ("Copy the weights", "two") in changed(role(hosts, "--limit", "two"))
    assert held(tmp_path / "two") == FILES
    assert hub.asked == []


def test_a_limited_run_says_what_to_do_where_the_first_node_has_no_model(role, tmp_path):
    hosts = {
        name: {
            "model_weights_path": str(tmp_path / name),
            "model_weights_seed": "one",
            "model_weights_seed_address": "127.0.0.1",
        }
        for name in ("one", "two")
    }
    failed = [result for _task, outcome, _host, result in role(hosts, "--limit", "two") if outcome == "failed"]
    assert "run this for that node first" in json.dumps(failed)


def test_the_first_host_with_the_same_model_fetches(role, hub, tmp_path):
    """By the role's own defaults."""
    same = {"model_weights_path": str(tmp_path / "same")}
    hosts = {"other": {"model_weights_path": str(tmp_path / "other")}, "one": same, "two": same}
    results = role(hosts, "--check")
    fetching = {host for task, host in changed(results) if task == "Fetch the weights"}
    copying = {host for task, host in changed(results) if task == "Copy the weights"}
    assert (fetching, copying) == ({"other", "one"}, {"two"})


# what others make of a model


def test_a_model_that_is_being_fetched_has_no_shape_yet(fetch, from_url):
    """So that a plan in check mode does not fail for it."""
    path = Path(from_url["path"])
    (path / weights.OWN).mkdir(parents=True)
    assert serving_plan.read_model(str(path)) == (None, [])
    assert fetch(**from_url)["complete"]
    assert serving_plan.read_model(str(path))[0]["config"]["model_type"] == "llama"


def test_preflight_finds_shards_that_are_not_whole(tmp_path):
    tmp_path.chmod(0o755)
    folder = tmp_path / "srv/model"
    tiny_llama.write(folder)
    account = node.Account("sglang", 54321, frozenset({54321}))
    files = node.model_files("/srv/model", account, tmp_path)
    assert rules.model(SETTINGS, node.replace(FIT, model=files), RELEASE) == []
    (folder / "model.safetensors").write_bytes(FILES["model.safetensors"][:-1])
    (folder / "tokenizer.json").unlink()
    facts = node.replace(FIT, model=node.model_files("/srv/model", account, tmp_path))
    found = rules.model(SETTINGS, facts, RELEASE)
    assert [finding.id for finding in found] == ["weights.broken", "weights.tokenizer"]
    assert "/srv/model/model.safetensors is truncated" in found[0].seen
    # Where root may not look, as on a file system that squashes it, nothing is known of what lies there.
    unseen = node.replace(facts, model=node.replace(facts.model, unseen="/srv/model/blobs"))
    assert [finding.id for finding in rules.model(SETTINGS, unseen, RELEASE)] == ["model.unseen"]
    waived = node.replace(SETTINGS, model_waived=("weights.tokenizer",))
    assert [finding.id for finding in rules.model(waived, facts, RELEASE)] == ["weights.broken"]
    # As a report holds it.
    again = node.NodeFacts.from_dict(json.loads(json.dumps(facts.as_dict())))
    assert rules.model(SETTINGS, again, RELEASE) == found


def test_preflight_counts_a_model_that_is_to_be_fetched(tmp_path):
    """C23: 400 GB free of 594 GB; what is there already is not counted again."""
    settings = node.replace(SETTINGS, model_download="/srv/model", model_size_gb=594)
    spaces = {**FIT.spaces, "/srv/model": node.Space("/srv/model", "/srv", "8:1", 400 * 10**9)}
    (found,) = rules.disk(settings, node.replace(FIT, spaces=spaces), RELEASE)
    assert (found.id, found.severity) == ("disk.too_small", "error")
    assert "623.7 GB below /srv/model" in found.seen
    assert "set model_weights_path to a folder on a larger disk" in found.remedy
    assert rules.disk(settings, node.replace(FIT, spaces=spaces, model_stored=250 * 10**9), RELEASE) == []
    (tmp_path / "srv/model").mkdir(parents=True)
    (tmp_path / "srv/model/a").write_bytes(b"12345")
    assert "/srv/model" in node.written(settings)
    assert weights.stored(tmp_path / "srv/model") == 5


def test_preflight_tells_what_a_role_will_fetch_again(tmp_path, fetch, from_url):
    """The node as the module leaves it, then damaged: one finding a fault, none for what is right."""
    tmp_path.chmod(0o755)
    assert fetch(**{**from_url, "path": str(tmp_path / "srv/model")})["complete"]
    settings = node.replace(SETTINGS, model="", model_download="/srv/model", model_wanted={"source": "url"})
    account = node.Account("sglang", 54321, frozenset({54321}))

    def found(given=settings) -> list[tuple[str, str]]:
        facts = node.replace(FIT, model=None, download=node._download(given, account, tmp_path))
        again = node.NodeFacts.from_dict(json.loads(json.dumps(facts.as_dict())))
        judged = rules.download(given, again, RELEASE)
        assert judged == rules.download(given, facts, RELEASE)
        return [(finding.id, finding.severity) for finding in judged]

    assert found() == []
    assert found(node.replace(settings, model_wanted={"source": "folder"})) == [("weights.another", "error")]
    folder = tmp_path / "srv/model"
    (folder / "model.safetensors").write_bytes(b"")
    assert found() == [("weights.again", "warning")]
    assert found(node.replace(settings, model_waived=("weights.again",))) == []
    (folder / weights.OWN / "0.incomplete").touch(0o600)  # the role's own, which no service reads
    assert found() == [("weights.again", "warning")]
    (folder / "config.json").chmod(0o600)
    assert ("model.unreadable", "warning") in found()
    assert found(node.replace(settings, model_download="/srv/none")) == []
    (tmp_path / "srv/empty").mkdir()
    assert found(node.replace(settings, model_download="/srv/empty")) == []
    (tmp_path / "srv/file").touch()
    assert found(node.replace(settings, model_download="/srv/file")) == [("model.not_a_folder", "error")]
