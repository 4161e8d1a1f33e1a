# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernel's command line and the boot loader's files: C18, IOMMU and ACS between GPUs on PCIe."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import boot
from ansible_collections.inference.sglang.plugins.module_utils.boot import Boot, Wanted
from ansible_collections.inference.sglang.plugins.module_utils.hardware import Bridge, GpuState, Hardware, Kernel
from ansible_collections.inference.sglang.plugins.modules import boot_parameters
from hypothesis import given, settings
from hypothesis import strategies as st

PASS = Wanted(iommu="passthrough")
BRIDGES = ("0000:00:01.1", "0000:40:01.1")
BARE = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet"
Tree = Callable[[Mapping[str, str]], Path]


def revised(line: str, wanted: Wanted) -> str:
    kept, added = boot.revised(boot.words(line), wanted)
    return " ".join(word for word in (*kept, *added) if word)


@pytest.mark.parametrize(
    ("line", "wanted", "expected"),
    [
        (BARE, PASS, f"{BARE} iommu=pt"),
        (f"{BARE} iommu=pt", PASS, f"{BARE} iommu=pt"),
        ("intel_iommu=on iommu=pt", PASS, "intel_iommu=on iommu=pt"),
        ("iommu=force,pt ro", PASS, "iommu=force,pt ro"),
        ("iommu.passthrough=1", PASS, "iommu.passthrough=1"),
        ("iommu=off", PASS, "iommu=off"),
        ("iommu=nopt ro", PASS, "ro iommu=pt"),
        ("iommu=force,nopt ro", PASS, "iommu=force ro iommu=pt"),
        ("iommu=pt iommu=nopt", PASS, "iommu=pt iommu=pt"),
        ("iommu=pt iommu.passthrough=0", PASS, "iommu=pt iommu=pt"),
        ("amd_iommu=off", PASS, "amd_iommu=off iommu=pt"),
        ("iommux=nopt", PASS, "iommux=nopt iommu=pt"),
        ("iommu=pt intel_iommu=on ro", Wanted(iommu="off"), "ro iommu=off"),
        ("intel_iommu=on,sm_on", Wanted(iommu="off"), "intel_iommu=sm_on iommu=off"),
        ("iommu=nopt", Wanted(iommu="keep"), "iommu=nopt"),
        ('dyndbg="file drivers/pci/pci.c +p" ro', PASS, 'dyndbg="file drivers/pci/pci.c +p" ro iommu=pt'),
        ("ro", Wanted(bridges=BRIDGES), "ro pci=disable_acs_redir=0000:00:01.1;0000:40:01.1"),
        (
            "pci=noaer,disable_acs_redir=00:01.1 pci=realloc=off",
            Wanted(bridges=BRIDGES),
            "pci=noaer pci=realloc=off pci=disable_acs_redir=0000:00:01.1;0000:40:01.1",
        ),
        (
            "pci=disable_acs_redir=40:01.1;00:01.1;00:02.1",
            Wanted(bridges=BRIDGES),
            "pci=disable_acs_redir=40:01.1;00:01.1;00:02.1",
        ),
        # The kernel keeps the last list only.
        (
            "pci=disable_acs_redir=0000:00:01.1 pci=disable_acs_redir=pci:10b5:8747",
            Wanted(bridges=BRIDGES[:1]),
            "pci=disable_acs_redir=pci:10b5:8747;0000:00:01.1",
        ),
        ("pcie_acs_override=downstream", Wanted(bridges=()), "pcie_acs_override=downstream"),
    ],
)
def test_the_command_line_that_is_wanted(line: str, wanted: Wanted, expected: str) -> None:
    assert revised(line, wanted) == expected


WORDS = st.sampled_from(
    [
        *("ro", "quiet", "iommu=pt", "iommu=nopt", "iommu=off", "iommu=force,nopt", "iommu.passthrough=0", "pci=noaer"),
        *("iommu.passthrough=on", "intel_iommu=on", "amd_iommu=off", "pci=disable_acs_redir=00:01.1", 'x="a b"', "="),
        "pci=disable_acs_redir=0000:40:01.1;0000:00:01.1,noaer",
    ]
)
ANY_WANTED = st.builds(
    Wanted,
    iommu=st.sampled_from(["passthrough", "off", "keep"]),
    bridges=st.lists(st.sampled_from(BRIDGES), unique=True).map(tuple),
)


@given(st.lists(WORDS, max_size=6), ANY_WANTED)
def test_a_revised_line_needs_no_other_revision_and_loses_nothing_else(line: list[str], wanted: Wanted) -> None:
    once = revised(" ".join(line), wanted)
    assert revised(once, wanted) == once
    split = boot.words(once)
    assert set(wanted.bridges) <= set(boot.bridges(split))
    if wanted.iommu != "keep":
        assert boot.translation(split) in (wanted.iommu, "off")
    others = [word for word in line if not word.startswith(("iommu", "pci=", "intel_iommu"))]
    assert [word for word in split if word in others] == others


# The settings of GRUB

DEBIAN = """\
# If you change this file, run 'update-grub' afterwards to update
GRUB_DEFAULT=0
GRUB_DISTRIBUTOR=`( . /etc/os-release && echo ${NAME} )`
GRUB_CMDLINE_LINUX_DEFAULT="quiet"
GRUB_CMDLINE_LINUX=""
#GRUB_CMDLINE_LINUX_DEFAULT="never"
"""
KDUMP = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT crashkernel=2G-:512M"\n'


def evaluated(text: str, path: Path) -> dict[str, str]:
    """What a real shell makes of it."""
    path.write_text(text, encoding="utf-8")
    show = "; ".join(f"printf '%s\\0' \"${name}\"" for name in boot.VARIABLES)
    done = subprocess.run(
        ["sh", "-c", f'. "{path}" >/dev/null; {show}'], capture_output=True, check=False, env={"PATH": "/bin"}
    )
    return dict(zip(boot.VARIABLES, done.stdout.decode().split("\0")[-3:-1], strict=False))


PARTS = st.sampled_from(
    [
        *("quiet", "a=b", " ", '"', "'", "\\", "$", "#", ";", "\n", "\t", "(", ")", "&", "|", "`", "~", "*", "{", "}"),
        *(
            "$GRUB_CMDLINE_LINUX",
            "${GRUB_CMDLINE_LINUX}",
            "x y",
            '"b c"',
            "'d e'",
            "`echo no`",
            "$(echo no)",
            "${X:-no}",
        ),
        *("if", "export ", "+=", "é", "$1", "\\\n", '\\"', '"$GRUB_CMDLINE_LINUX"', " # no", '"#"'),
    ]
)
LINES = st.builds(
    lambda start, parts: start + "".join(parts),
    st.sampled_from(["GRUB_CMDLINE_LINUX=", "GRUB_CMDLINE_LINUX_DEFAULT=", "GRUB_TIMEOUT=1;GRUB_CMDLINE_LINUX=", ""]),
    st.lists(PARTS, max_size=5),
)


@settings(max_examples=300)
@given(st.lists(LINES, max_size=4).map("\n".join))
def test_what_is_told_of_a_file_is_what_a_shell_makes_of_it(text: str) -> None:
    try:
        told = boot.assignments(text, dict.fromkeys(boot.VARIABLES, ""))
    except boot.UnreadableError:
        return
    path = Path(f"/tmp/boot-{os.getpid()}")
    try:
        real = evaluated(text, path)
    finally:
        path.unlink(missing_ok=True)
    for name, value in real.items():
        assert told[name] in (None, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEBIAN, "quiet"),
        (DEBIAN + KDUMP, "quiet crashkernel=2G-:512M"),
        ("GRUB_CMDLINE_LINUX_DEFAULT='a b'\nGRUB_CMDLINE_LINUX_DEFAULT=c # d\n", "c"),
        ("GRUB_CMDLINE_LINUX_DEFAULT=a\\ b;GRUB_TIMEOUT=1", "a b"),
        ("GRUB_CMDLINE_LINUX_DEFAULT=a#b #c", "a#b"),
        ("GRUB_CMDLINE_LINUX_DEFAULT=a\\\nb", "ab"),
        ('GRUB_CMDLINE_LINUX_DEFAULT="a \\"b c\\" \\\n d"', 'a "b c"  d'),
        ("GRUB_CMDLINE_LINUX_DEFAULT=`cat /x`", None),
        ('GRUB_CMDLINE_LINUX_DEFAULT="$(cat /x)"', None),
        ('GRUB_CMDLINE_LINUX_DEFAULT="$HOME"', None),
        ("if true; then GRUB_TIMEOUT=1; fi", ""),
    ],
)
def test_the_settings_of_grub_are_read(text: str, expected: str | None) -> None:
    assert boot.assignments(text, dict.fromkeys(boot.VARIABLES, ""))["GRUB_CMDLINE_LINUX_DEFAULT"] == expected


@pytest.mark.parametrize(
    "line",
    [
        "[ -e /x ] && GRUB_CMDLINE_LINUX_DEFAULT=x",
        "if true; then GRUB_CMDLINE_LINUX=x; fi",
        "export GRUB_CMDLINE_LINUX=x",
        "GRUB_CMDLINE_LINUX+=x",
        "GRUB_CMDLINE_LINUX='x",
        "GRUB_CMDLINE_LINUX=x >/dev/null",
    ],
)
def test_settings_that_only_a_shell_can_tell_are_not_guessed(line: str) -> None:
    with pytest.raises(boot.UnreadableError):
        boot.assignments(line, {})


# Whole nodes


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A node's files."""

    def make(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return make


def grub(default: str = DEBIAN, running: str = BARE, **others: str) -> dict[str, str]:
    named = {f"{boot.DEFAULTS}.d/{name}.cfg": text for name, text in others.items()}
    return {boot.DEFAULTS: default, "proc/cmdline": f"{running}\n", boot.GRUB_CFG: "menu", **named}


def test_files_are_read_in_grub_s_order_and_ours_is_left_out(tree: Tree) -> None:
    ours = {boot.DROP_IN: "GRUB_CMDLINE_LINUX_DEFAULT=ours\n"}
    read = boot.read(tree(grub(**{"50-cloudimg": "GRUB_CMDLINE_LINUX_DEFAULT=console=ttyS0\n", "kdump": KDUMP}) | ours))
    assert read.loader == "grub"
    assert read.lines == {
        "GRUB_CMDLINE_LINUX": "",
        "GRUB_CMDLINE_LINUX_DEFAULT": "console=ttyS0 crashkernel=2G-:512M",
    }
    assert read.drop_in == ours[boot.DROP_IN]
    assert read.running == BARE


@pytest.mark.parametrize(
    ("default", "wanted"),
    [
        (DEBIAN, PASS),
        (DEBIAN, Wanted(iommu="passthrough", bridges=BRIDGES)),
        ("GRUB_CMDLINE_LINUX_DEFAULT=\n", PASS),
        ('GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=nopt"\nGRUB_CMDLINE_LINUX="iommu.passthrough=0 it\'s"\n', PASS),
        ("GRUB_CMDLINE_LINUX_DEFAULT=\" quiet  x='a b' \"\n", Wanted(bridges=BRIDGES)),
    ],
)
def test_the_drop_in_gives_a_shell_the_line_that_is_wanted(tree: Tree, default: str, wanted: Wanted) -> None:
    root = tree(grub(default))
    read = boot.read(root)
    text = boot.drop_in(read, wanted)
    real = evaluated(default + text, root / "file")
    line = " ".join(real.values())
    assert boot.revised(boot.words(line, grub=True), wanted) == (boot.words(line, grub=True), [])
    # With that file there, nothing else is wanted: a second run writes the same.
    assert boot.drop_in(boot.read(tree(grub(default) | {boot.DROP_IN: text})), wanted) == text


def test_what_grub_s_shell_would_take_for_the_end_of_a_command_is_quoted(tree: Tree) -> None:
    text = boot.drop_in(boot.read(tree(grub())), Wanted(bridges=BRIDGES))
    assert text.endswith("""="$GRUB_CMDLINE_LINUX_DEFAULT"' "pci=disable_acs_redir=0000:00:01.1;0000:40:01.1"'\n""")


def test_nothing_is_written_where_the_node_s_own_files_say_it(tree: Tree) -> None:
    assert boot.drop_in(boot.read(tree(grub("GRUB_CMDLINE_LINUX='iommu=pt'\n"))), PASS) == ""


def node(iommu: Any = "translated", acs: tuple[str, ...] = ("SrcValid", "ReqRedir"), gpus: int = 2) -> Hardware:
    cards = tuple(
        GpuState(address=f"0000:{index}1:00.0", bridges=(Bridge(address=f"0000:{index}0:01.1", acs=acs),))
        for index in range(gpus)
    )
    return Hardware(gpus=cards, kernel=Kernel(iommu=iommu))


REDIRECTING = ("0000:00:01.1", "0000:10:01.1")


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        (node(), Wanted(iommu="passthrough", bridges=REDIRECTING)),
        (node("passthrough"), Wanted(bridges=REDIRECTING)),
        (node("off"), Wanted(bridges=REDIRECTING)),
        (node(""), Wanted(bridges=REDIRECTING)),
        (node(acs=("SrcValid", "TransBlk")), PASS),
        (node(acs=("EgressCtrl",)), Wanted(iommu="passthrough", bridges=REDIRECTING)),
        (node(gpus=1), Wanted()),
        (node(gpus=0), Wanted()),
        # Preflight finds nothing wrong with it, either.
        (replace(node(), links={(0, 1): "NV18"}), Wanted()),
        (replace(node(), links={(0, 1): "PHB"}), Wanted(iommu="passthrough", bridges=REDIRECTING)),
    ],
)
def test_what_a_node_needs_follows_from_its_state(hardware: Hardware, expected: Wanted) -> None:
    assert boot.wanted(hardware, "passthrough", None, Boot()) == expected


def test_what_was_set_once_stays_when_its_reason_is_gone(tree: Tree) -> None:
    """After the boot nothing is translated or redirected any more."""
    text = boot.drop_in(boot.read(tree(grub())), boot.wanted(node(), "passthrough", None, Boot()))
    booted = boot.read(tree({boot.DROP_IN: text}))
    assert boot.wanted(node("passthrough", ()), "passthrough", None, booted) == Wanted(
        iommu="passthrough", bridges=REDIRECTING
    )
    assert boot.drop_in(booted, boot.wanted(node("passthrough", ()), "passthrough", None, booted)) == text


def test_named_bridges_are_taken_as_they_are() -> None:
    assert boot.wanted(node(), "keep", ["40:01.1"], Boot()) == Wanted(bridges=("0000:40:01.1",))
    assert boot.wanted(node("passthrough", ()), "off", [], Boot()) == Wanted(iommu="off")


def found(read: Boot, wanted: Wanted, fix: bool = False) -> list[str]:
    return [finding.id for finding in boot.judge(read, wanted, fix)]


def test_the_exact_change_is_told_until_it_is_to_be_made(tree: Tree) -> None:
    read = boot.read(tree(grub()))
    (finding,) = boot.judge(read, PASS, False)
    assert finding.id == "boot.parameters"
    assert finding.seen == "GRUB_CMDLINE_LINUX_DEFAULT: 'quiet' should be 'quiet iommu=pt'"
    assert "preflight_fix_boot: true" in finding.remedy
    assert found(read, PASS, fix=True) == ["boot.reboot_pending"]


def test_a_reboot_is_pending_until_the_running_kernel_has_it(tree: Tree) -> None:
    root = tree(grub())
    text = boot.drop_in(boot.read(root), PASS)
    written = boot.read(tree({boot.DROP_IN: text}))
    (finding,) = boot.judge(written, PASS, False)
    assert finding.id == "boot.reboot_pending"
    assert "iommu=pt" in finding.seen
    booted = boot.read(tree({"proc/cmdline": f"{BARE} iommu=pt\n"}))
    assert boot.judge(booted, PASS, False) == []


def test_a_word_that_goes_is_named(tree: Tree) -> None:
    read = boot.read(tree(grub("GRUB_CMDLINE_LINUX=iommu=pt\n", running="ro iommu=nopt")))
    (finding,) = boot.judge(read, PASS, False)
    assert (finding.id, "iommu=pt instead of iommu=nopt" in finding.seen) == ("boot.reboot_pending", True)


def test_settings_that_cannot_be_told_are_left_alone(tree: Tree) -> None:
    read = boot.read(tree(grub(own="GRUB_CMDLINE_LINUX=$(cat /etc/x)\n")))
    (finding,) = boot.judge(read, PASS, True)
    assert finding.id == "boot.unreadable"
    assert "own.cfg" in finding.seen
    assert "iommu=pt" in finding.remedy
    assert boot.drop_in(read, PASS) == ""
    assert found(boot.read(tree({"proc/cmdline": "iommu=pt"})), PASS) == []


def test_another_boot_loader_is_told_what_it_should_add(tree: Tree) -> None:
    root = tree({"proc/cmdline": BARE})
    (finding,) = boot.judge(boot.read(root), PASS, True)
    assert finding.id == "boot.loader_unknown"
    assert "iommu=pt" in finding.seen
    assert found(boot.read(root), Wanted()) == []


def test_systemd_boot_s_file_is_told_and_not_written(tree: Tree) -> None:
    root = tree({**grub(), boot.KERNEL_CMDLINE: "root=/dev/sda1 ro\n", boot.LOADER_INFO: ""})
    (root / boot.LOADER_INFO).write_bytes(b"\x06\0\0\0" + "systemd-boot 252".encode("utf-16-le"))
    read = boot.read(root)
    assert read.loader == "systemd-boot"
    (finding,) = boot.judge(read, Wanted(bridges=BRIDGES), True)
    assert finding.id == "boot.parameters"
    assert "'root=/dev/sda1 ro pci=disable_acs_redir=0000:00:01.1;0000:40:01.1'" in finding.seen
    assert "kernel-install" in finding.remedy
    tree({boot.KERNEL_CMDLINE: "root=/dev/sda1 ro iommu=pt\n"})
    assert found(boot.read(root), PASS, True) == ["boot.reboot_pending"]


def test_a_menu_that_is_older_than_our_file_is_stale(tree: Tree) -> None:
    root = tree({**grub(), boot.DROP_IN: "x"})
    os.utime(root / boot.GRUB_CFG, (1, 1))
    assert boot.read(root).stale
    os.utime(root / boot.DROP_IN, (0, 0))
    assert not boot.read(root).stale


# The module


@pytest.fixture
def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Call the module for a node below a folder, with an update-grub that copies the file into the menu."""

    def call(check: bool = False, broken: bool = False, **arguments: object) -> dict[str, Any]:
        programs = tmp_path / "programs"
        programs.mkdir(exist_ok=True)
        menu = tmp_path / boot.GRUB_CFG
        update = "echo no space >&2; exit 1\n" if broken else f"cat {tmp_path / boot.DROP_IN} > {menu}; exit 0\n"
        (programs / "update-grub").write_text(f"#!/bin/sh\n{update}")
        (programs / "update-grub").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        hardware = {} if arguments.get("state") == "absent" else {"hardware": node().to_dict()}
        given = {"root": str(tmp_path), "_ansible_check_mode": check} | hardware | arguments
        with patch_module_args(given), pytest.raises(SystemExit):
            boot_parameters.main()
        return json.loads(capsys.readouterr().out)

    return call


def test_nothing_is_written_unless_it_is_to_be_fixed(tree: Tree, run: Callable[..., dict[str, Any]]) -> None:
    root = tree(grub())
    told = run()
    assert not told["changed"]
    assert [finding["id"] for finding in told["findings"]] == ["boot.parameters"]
    assert told["wanted"]["GRUB_CMDLINE_LINUX_DEFAULT"].startswith("quiet iommu=pt ")
    checked = run(check=True, fix=True)
    assert checked["changed"]
    assert "iommu=pt" in checked["diff"]["after"]
    assert not (root / boot.DROP_IN).parent.exists()


def test_the_fix_is_made_once_and_taken_back(tree: Tree, run: Callable[..., dict[str, Any]]) -> None:
    root = tree(grub())
    made = run(fix=True)
    assert (made["changed"], made["reboot_pending"]) == (True, True)
    assert "iommu=pt" in (root / boot.GRUB_CFG).read_text()
    again = run(fix=True)
    assert (again["changed"], again["reboot_pending"]) == (False, True)
    assert again["diff"]["before"] == again["diff"]["after"]
    (root / "proc/cmdline").write_text((root / "proc/cmdline").read_text().strip() + " iommu=pt\n")
    assert run(check=True, state="absent")["changed"]
    assert (root / boot.DROP_IN).exists()
    gone = run(state="absent")
    assert (gone["changed"], gone["reboot_pending"]) == (True, True)
    assert "iommu=pt" in gone["findings"][0]["seen"]
    assert not (root / boot.DROP_IN).exists()
    assert "iommu=pt" not in (root / boot.GRUB_CFG).read_text()
    assert not run(state="absent")["changed"]


def test_a_run_that_was_killed_before_update_grub_is_completed(tree: Tree, run: Callable[..., dict[str, Any]]) -> None:
    root = tree(grub())
    run(fix=True)
    (root / boot.GRUB_CFG).write_text("old menu")
    os.utime(root / boot.GRUB_CFG, (1, 1))
    assert run(fix=True)["changed"]
    assert "iommu=pt" in (root / boot.GRUB_CFG).read_text()
    assert not run(fix=True)["changed"]


@pytest.mark.parametrize("before", [None, "GRUB_CMDLINE_LINUX_DEFAULT=older\n"])
def test_the_file_is_put_back_where_update_grub_fails(
    tree: Tree, run: Callable[..., dict[str, Any]], before: str | None
) -> None:
    root = tree(grub() | ({boot.DROP_IN: before} if before else {}))
    failed = run(broken=True, fix=True)
    assert failed["failed"]
    assert "no space" in failed["msg"]
    assert ((root / boot.DROP_IN).read_text() if before else None) == before
    assert before or not (root / boot.DROP_IN).exists()


def test_settings_that_cannot_be_told_stop_no_other_task(tree: Tree, run: Callable[..., dict[str, Any]]) -> None:
    tree(grub(own="export GRUB_CMDLINE_LINUX=x\n"))
    told = run(fix=True)
    assert (told["changed"], [finding["id"] for finding in told["findings"]]) == (False, ["boot.unreadable"])
