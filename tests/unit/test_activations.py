# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which activation is wanted, proven and former, whatever interrupts the run that moves them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import activations, health, wheels
from ansible_collections.inference.sglang.plugins.modules import sglang_activation


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder with releases A, B and C, a toolkit and a model."""
    monkeypatch.setattr(activations, "FOLDER", tmp_path / "etc")
    monkeypatch.setattr(health, "UNIT_FOLDER", tmp_path / "units")
    for folder in ("etc", "units", "toolkit", "model"):
        (tmp_path / folder).mkdir(parents=True)
    for release in "ABC":
        wheels.write_manifest(str(tmp_path / "releases" / release), {"version": release})
    return tmp_path


@pytest.fixture
def want(node: Path) -> Callable[..., None]:
    """Write plan and unit, as the role does."""

    def write(release: str, instance: str = "tiny") -> None:
        plan: dict[str, Any] = {
            "digest": f"digest-{release}",
            "url": "http://127.0.0.1:30000",
            "served_name": "tiny",
            "release_path": f"{node}/releases/{release}",
            "cuda_home": f"{node}/toolkit",
            "model_path": f"{node}/model",
            "secrets": f"{node}/secrets.yml" if release == "C" else "",
            "start_timeout": 1,
            "stop_timeout": 1,
        }
        (node / "etc" / instance).mkdir(exist_ok=True)
        (node / "etc" / instance / "plan.json").write_text(json.dumps(plan))
        (node / f"units/sglang-{instance}.service").write_text(f"unit of {release}")

    return write


def names(slots: activations.Slots) -> list[str]:
    """The digest of each: current, good, previous, proven, former; a dash for none."""
    every = (slots.current, slots.good, slots.previous, slots.proven, slots.former)
    return [slot.digest.removeprefix("digest-") if slot else "-" for slot in every]


def test_the_slots_follow_the_proofs(want):
    assert names(activations.read("tiny")) == ["-", "-", "-", "-", "-"]
    want("A")
    assert names(activations.read("tiny")) == ["A", "-", "-", "-", "-"]
    activations.record("tiny")
    assert names(activations.read("tiny")) == ["A", "A", "-", "A", "-"]
    want("B")
    assert names(activations.read("tiny")) == ["B", "A", "-", "A", "A"]
    activations.record("tiny")
    assert names(activations.read("tiny")) == ["B", "B", "A", "B", "A"]
    want("C")  # unproven: the former of it is what was good, not what was before that
    assert names(activations.read("tiny")) == ["C", "B", "A", "B", "B"]


def test_going_back_and_recording_it_swaps_the_two(want):
    for release in "AB":
        want(release)
        activations.record("tiny")
    for expected in (["A", "A", "B", "A", "B"], ["B", "B", "A", "B", "A"]):
        activations.restore("tiny", activations.read("tiny").former)
        activations.record("tiny")
        assert names(activations.read("tiny")) == expected


def test_a_slot_is_the_same_bytes_readable_by_all_and_the_unit_keeps_its_time(node, want):
    want("A")
    unit = node / "units/sglang-tiny.service"
    os.utime(unit, ns=(10**18 + 7, 10**18 + 7))
    umask = os.umask(0o077)
    activations.record("tiny")
    os.umask(umask)
    good = node / "etc/tiny/good"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (good, *sorted(good.iterdir()))]
    assert modes == [0o755, 0o644, 0o644]
    plan = (node / "etc/tiny/plan.json").read_bytes()
    want("B")
    activations.restore("tiny", activations.read("tiny").good)
    assert (node / "etc/tiny/plan.json").read_bytes() == plan
    assert (unit.read_text(), unit.stat().st_mtime_ns) == ("unit of A", 10**18 + 7)


class Killed(BaseException):
    """The run ends here."""


def test_a_record_that_is_killed_loses_nothing(node, want, monkeypatch):
    """Before each rename, removal and new folder in turn, until none is left. The next run records what is not."""
    operations = ((Path, "rename"), (Path, "mkdir"), (os, "replace"), (os, "utime"), (shutil, "rmtree"))
    for limit in range(100):
        instance = f"tiny{limit}"
        for release in "AB":
            want(release, instance)
            activations.record(instance)
        want("C", instance)
        left = iter(range(limit))

        def dying(function: Callable[..., Any], left: Iterator[int] = left) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if next(left, None) is None:
                    raise Killed
                return function(*arguments, **options)

            return call

        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            for place, name in operations:
                patch.setattr(place, name, dying(getattr(place, name)))
            activations.record(instance)
            break
        slots = activations.read(instance)
        assert slots.proven.digest in ("digest-B", "digest-C")
        if not slots.current.same_as(slots.good):
            activations.record(instance)
        assert names(activations.read(instance))[:3] == ["C", "C", "B"]
    assert limit > 8, "it was never killed"


def test_a_slot_that_is_half_there_is_none(node, want):
    want("A")
    activations.record("tiny")
    (node / "etc/tiny/good/sglang-tiny.service").unlink()
    assert names(activations.read("tiny"))[1] == "-"


@pytest.mark.parametrize(
    ("gone", "finding"),
    [
        ("releases/A/manifest.json", "activation.release_gone"),
        ("toolkit", "activation.toolkit_gone"),
        ("model", "activation.model_gone"),
    ],
)
def test_what_can_no_longer_be_started_is_told(node, want, gone, finding):
    want("A")
    current = activations.read("tiny").current
    assert activations.judge(current) == []
    path = node / gone
    path.unlink() if path.is_file() else path.rmdir()
    (found,) = activations.judge(current)
    assert found.id == finding
    assert str(path if path.name != "manifest.json" else path.parent) in found.seen


def test_an_activation_with_a_key_cannot_be_started_without_it(node, want):
    want("C")
    current = activations.read("tiny").current
    (found,) = activations.judge(current)
    assert (found.id, f"{node}/secrets.yml" in found.seen) == ("activation.secrets_gone", True)
    (node / "secrets.yml").touch()
    assert activations.judge(current) == []


@pytest.mark.parametrize("value", [5, None, [], "\0"])
def test_a_plan_whose_release_is_no_path_is_told(want, value):
    want("A")
    plan = activations.read("tiny").current.settings | {"release_path": value}
    (found,) = activations.judge(activations.Activation(json.dumps(plan).encode(), b""))
    assert found.id == "activation.damaged"


def test_a_slot_whose_plan_is_a_folder_is_damaged(node, want):
    want("A")
    activations.record("tiny")
    want("B")
    (node / "etc/tiny/good/plan.json").unlink()
    (node / "etc/tiny/good/plan.json").mkdir()
    (found,) = activations.judge(activations.read("tiny").former)
    assert found.id == "activation.damaged"


@pytest.fixture
def act(capsys, monkeypatch) -> Callable[..., dict[str, Any]]:
    """Call the module; its result. Nothing is started."""
    monkeypatch.setattr(health, "unit_state", lambda _name: health.UnitState("failed", "failed", "", 0, 0, started=0.0))
    for name in ("restart", "stop"):
        monkeypatch.setattr(health, name, lambda _name: None)
    monkeypatch.setattr(health, "reload", lambda: None)

    def call(state: str, check: bool = False, **more: object) -> dict[str, Any]:
        given = {"name": "tiny", "state": state, "_ansible_check_mode": check, **more}
        with patch_module_args(given), pytest.raises(SystemExit):
            sglang_activation.main()
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def both(want) -> None:
    """A was proven, and then B."""
    for release in "AB":
        want(release)
        activations.record("tiny")


@pytest.mark.parametrize("kept", [False, True], ids=["loads", "serves"])
def test_an_interrupted_way_back_is_ended_by_the_next_run(node, both, act, kept):
    act("former", check=True)
    assert not (node / "etc/tiny/.former").exists()
    act("former")  # and the run is killed
    if kept:
        activations.record("tiny")  # as state kept does, once it serves
    assert act("former", check=True)["plan"]["digest"] == "digest-A"
    assert act("former")["changed"] is False
    act("recorded", digest="digest-A")
    assert names(activations.read("tiny")) == ["A", "A", "B", "A", "B"]


def test_a_way_back_that_is_killed_between_plan_and_unit_goes_on(node, both, act, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(activations, "_write_unit", killed)
        with contextlib.suppress(Killed):
            act("former")
    assert (names(activations.read("tiny"))[0], act("former")["plan"]["digest"]) == ("A", "digest-A")
    assert (node / "units/sglang-tiny.service").read_text() == "unit of A"


def test_a_way_back_that_was_given_up_is_forgotten(both, act):
    act("former")
    act("reverted")
    assert names(activations.read("tiny")) == ["B", "B", "A", "B", "A"]
    assert activations.read("tiny").goal == ""


def test_a_way_back_that_somebody_left_for_another_plan_is_void(both, want, act):
    act("former")
    want("C")
    assert act("former", check=True)["plan"]["digest"] == "digest-B"


def test_what_cannot_be_read_is_told_by_the_module(both, act, monkeypatch):
    monkeypatch.setattr(activations, "read", denied)
    assert "denied" in act("former")["msg"]


def denied(_instance: str) -> None:
    raise PermissionError("denied")


def killed(*_arguments: object) -> None:
    raise Killed


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"digest": "x"}'])
def test_a_plan_that_cannot_be_read_is_told(content):
    (found,) = activations.judge(activations.Activation(content, b""))
    assert found.id == "activation.damaged"


RUNNING = health.UnitState("active", "running", "success", 812, 0, started=100.0)


@pytest.mark.parametrize(
    ("current", "pid", "expected"),
    [
        (activations.Activation(b"", b"new", int(99e9)), 812, True),
        (activations.Activation(b"", b"new", int(101e9)), 812, False),
        (activations.Activation(b"", b"old", int(99e9)), 812, False),
        (activations.Activation(b"", b"new", int(99e9)), 0, False),
        (None, 812, False),
    ],
    ids=["from the new unit", "before the new unit", "same unit", "nothing runs", "no unit"],
)
def test_a_process_of_another_unit_with_the_same_plan(current, pid, expected):
    unit = health.UnitState("active", "running", "success", pid, 0, started=100.0)
    assert activations.runs_from_another(unit, current, activations.Activation(b"", b"old")) is expected
