# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Flags: the table of a release, read from its sources; the judgement on settings; the arguments made of them."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils.flag_sources import (
    differences,
    read_parser,
    read_sources,
)
from ansible_collections.inference.sglang.plugins.module_utils.flags import Flag, FlagTable, arguments, check
from ansible_collections.inference.sglang.plugins.module_utils.releases import RELEASES
from ansible_collections.inference.sglang.plugins.module_utils.units import parse_unit

FIXTURES = Path(__file__).parent / "fixtures"
SHIPPED = Path(__file__).parents[2] / "roles" / "sglang" / "files" / "flags"
IMPORT_SCRIPT = SHIPPED.parent / "import_release.py"


@pytest.fixture(scope="module")
def table() -> FlagTable:
    return FlagTable.from_json((SHIPPED / "0.5.12.post1.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def newer() -> FlagTable:
    return read_sources(FIXTURES / "annotated" / "sglang")


def ids(flags: dict[str, object], table: FlagTable) -> list[str]:
    return [finding.id for finding in check(flags, table)]


def test_registered_flags_are_those_of_argparse(tmp_path: Path) -> None:
    """The role's script reports the miniature's real parser; stand-ins for the libraries that it imports beside it."""
    llama = tmp_path / "transformers" / "models" / "llama"
    llama.mkdir(parents=True)
    for name in ("flashinfer.py", "xgrammar.py", llama / "modeling_llama.py"):
        (tmp_path / name).touch()
    (tmp_path / "torch.py").write_text("class version:\n    cuda = '13.0'\n")
    script = IMPORT_SCRIPT.read_text(encoding="utf-8")
    path = f"{tmp_path}:{FIXTURES / 'registered'}"
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], env={"PYTHONPATH": path}, capture_output=True, check=True
    )
    parser = read_parser(json.loads(done.stdout)["flags"])

    read = read_sources(FIXTURES / "registered" / "sglang")

    assert len(read) == 22
    assert differences(parser, read) == []
    assert parser["--sampler"].choices is not None
    assert read["--sampler"].runtime == ("choices",)
    assert read["--policy"].choices == ("lfu", "lru"), "a set has no order of its own, the table does"
    assert {flag.name: flag.deprecated for flag in read.flags if flag.deprecated} == {
        "--old-ratio": "Note: --old-ratio is deprecated now.",
        "--old-check": "[Deprecated] Use CHECK=1 instead.",
    }


def test_annotated_flags(newer: FlagTable) -> None:
    expected = [
        Flag("--pp-size", ("--pipeline-parallel-size",), type="int", default=1),
        Flag("--cuda-graph-max-bs-decode", type="int"),
        Flag("--cuda-graph-max-bs-prefill", type="int"),
        Flag("--fraction", type="float", default=0.5),
        Flag("--any-of", default="a"),
        Flag("--graph-backend", choices=("full", "disabled"), default="full"),
        Flag("--graph", type="parse_graph"),
        Flag("--mode", choices=("prefill", "decode")),
        Flag("--level", type="int", choices=(0, 2), default=0),
        Flag("--twice", type="int", default=2),
        Flag("--sizes", kind="list", type="int"),
        Flag("--paths", kind="list", default=[]),
        Flag("--ports", type="json"),
        Flag("--trust-remote-code", kind="switch", type="bool", default=False),
        Flag("--record", ("--no-record",), kind="switch", type="bool"),
        Flag("--old", kind="switch", type="bool", default=False, deprecated="(Deprecated, use --new) Old."),
        Flag("--config"),
        Flag("--disable-cuda-graph", (), "switch", "bool", None, False, deprecated="Deprecated. Use another one."),
        Flag("--one-of", choices=("amd",), default=False, deprecated="Deprecated", replacement="--any-of <name>"),
        Flag("--removed", kind="switch", type="bool", default=False, refused="--removed is gone."),
        Flag("--parser", choices=("auto", "kimi", "qwen"), default="a"),
        Flag("--hash", runtime=("choices", "default")),
        Flag("--handed-over", hidden=True),
    ]
    assert newer.flags == FlagTable(expected).flags


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"server_args\.py"):
        read_sources(tmp_path)
    (tmp_path / "srt").mkdir()
    (tmp_path / "srt" / "server_args.py").write_text("class ServerArgs:\n    port: int = 1\n")
    with pytest.raises(ValueError, match="No flags"):
        read_sources(tmp_path)


REGISTERED = "class ServerArgs:\n    def add_cli_args(parser):\n        "
ANNOTATED = "class ServerArgs:\n    "


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (REGISTERED + 'parser.add_argument("--" + NAME)', "NAME"),
        (REGISTERED + 'parser.add_argument("--a", action="append")', "the action append"),
        (REGISTERED + 'parser.add_argument("--a", action=Elsewhere)', "Elsewhere"),
        (REGISTERED + 'parser.add_argument("--a", nargs=count())', "count()"),
        (REGISTERED + 'parser.add_argument("--a", help="%s" % name)', "'%s' % name"),
        (REGISTERED + 'parser.add_argument("--a", help=7)', "7"),
        (REGISTERED + 'if ROCM:\n            parser.add_argument("--a")', "if ROCM"),
        (REGISTERED + "for name in NAMES:\n            parser.add_argument(name)", "for name in NAMES"),
        (REGISTERED + "more_flags(parser)", "more_flags(parser)"),
        (REGISTERED + 'group = parser.add_argument_group("a")', "add_argument_group"),
        (REGISTERED + 'group.add_argument("--a")', "group.add_argument"),
        (ANNOTATED + "a: A[int, Help(TEXT)] = 1", "Help(TEXT)"),
        (ANNOTATED + 'a: A[int, Arg("positional")] = 1', "Arg('positional')"),
        (ANNOTATED + 'a: A[int, Arg(help="A.", no_cli=OFF)] = 1', "OFF"),
        (ANNOTATED + 'a: A[int, Arg(help="A.", aliases=NAMES)] = 1', "NAMES"),
        (ANNOTATED + 'a: A[int, Arg(help="A.", action_kwargs=MORE)] = 1', "MORE"),
    ],
)
def test_what_is_not_understood_is_an_error_with_its_place(tmp_path: Path, source: str, reason: str) -> None:
    (tmp_path / "srt").mkdir()
    (tmp_path / "srt" / "server_args.py").write_text(source)
    with pytest.raises(ValueError, match=r"server_args\.py, from line \d on, this is not understood: ") as told:
        read_sources(tmp_path)
    assert reason in str(told.value)


def test_two_flags_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="--b is two flags"):
        FlagTable([Flag("--a", ("--b",)), Flag("--b")])


def test_differences_name_flag_and_field() -> None:
    one = FlagTable([Flag("--a"), Flag("--b", choices=("x", "y")), Flag("--c", default=1, runtime=("choices",))])
    other = FlagTable(
        [Flag("--b", choices=("y", "x"), hidden=True), Flag("--c", default=2, choices=("z",)), Flag("--d")]
    )
    assert differences(other, one) == ["--a is only shipped", "--d is only found", "--b: hidden", "--c: default"]
    assert differences(one, one) == []
    told = FlagTable([Flag("--a", deprecated="Deprecated."), Flag("--b", deprecated="No.")])
    assert differences(FlagTable([Flag("--a"), Flag("--b")]), told) == [], "a parser cannot tell"
    assert differences(FlagTable([Flag("--a", deprecated="Deprecated."), Flag("--b")]), told) == ["--b: deprecated"]


@pytest.mark.parametrize("version", RELEASES)
def test_every_release_ships_its_table(version: str) -> None:
    text = (SHIPPED / f"{version}.json").read_text(encoding="utf-8")
    shipped = FlagTable.from_json(text)
    assert shipped.to_json() == text
    assert {"--model-path", "--host", "--port", "--tp-size", "--pp-size", "--mem-fraction-static"} <= set(shipped)


def test_the_table_of_the_story(table: FlagTable) -> None:
    """As many as the real parser of the wheel has; sglang_release compares all that it knows of them."""
    assert (len(table.flags), len(table)) == (387, 402)
    for unit in ("story_naive.service", "story_repaired.service"):
        argv = parse_unit((FIXTURES / unit).read_text()).argv
        assert [word for word in argv if word.startswith("--") and word not in table] == []
    assert "triton" in (table["--attention-backend"].choices or ())
    assert "kimi_k2" in (table["--tool-call-parser"].choices or ())
    assert table["--stream-output"].deprecated


def test_c16_flags_that_another_release_renamed(table: FlagTable, newer: FlagTable) -> None:
    assert arguments({"cuda-graph-max-bs": 64}, table) == [["--cuda-graph-max-bs", "64"]]
    assert arguments({"cuda-graph-max-bs-decode": 64}, newer) == [["--cuda-graph-max-bs-decode", "64"]]
    (gone,) = check({"--cuda-graph-max-bs": 64}, newer)
    assert (gone.id, gone.severity) == ("flag.abbreviation", "error")
    assert "--cuda-graph-max-bs-decode or --cuda-graph-max-bs-prefill" in gone.remedy
    (underscore,) = check({"--reasoning_parser": "kimi_k2"}, table)
    assert (underscore.id, underscore.remedy) == ("flag.underscore", "Write --reasoning-parser")
    (old,) = check({"disable-cuda-graph": True}, newer)
    assert (old.id, old.severity) == ("flag.deprecated", "warning")


def test_c31_values_that_ansible_renders(table: FlagTable) -> None:
    flags: dict[str, object] = {
        "chunked-prefill-size": None,
        "cuda-graph-bs": [1, 2, 4, 8],
        "trust-remote-code": "yes",
        "revision": "",
        "mem-fraction-static": 0.90,
        "served-model-name": "kimi k2",
        "schedule-policy": None,
        "disable-cuda-graph": "False",
        "disable-radix-cache": False,
        "json-model-override-args": {"rope_scaling": {"factor": 2.0}, "nothing": None, "on": True},
        "pp-size": "8",
    }
    assert arguments(flags, table) == [
        ["--cuda-graph-bs", "1", "2", "4", "8"],
        ["--trust-remote-code"],
        ["--mem-fraction-static", "0.9"],
        ["--served-model-name", "kimi k2"],
        ["--json-model-override-args", '{"rope_scaling":{"factor":2.0},"nothing":null,"on":true}'],
        ["--pp-size", "8"],
    ]


@pytest.mark.parametrize("empty", [None, "", []])
def test_no_flag_is_set_by_an_empty_value(table: FlagTable, empty: object) -> None:
    for spelling in table:
        assert arguments({spelling: empty}, table) == []


def test_a_key_that_yaml_takes_for_a_date_becomes_text(table: FlagTable) -> None:
    value = {datetime.date(2024, 1, 1): {"b": [datetime.date(2024, 1, 2)]}}
    flag = "preferred-sampling-params"
    assert arguments({flag: value}, table) == [[f"--{flag}", '{"2024-01-01":{"b":["2024-01-02"]}}']]


@pytest.mark.parametrize(
    ("flag", "value", "seen"),
    [
        ("pp-size", "eight", "whole number"),
        ("pp-size", 8.0, "whole number"),
        ("pp-size", True, "takes a value"),
        ("pp-size", [8], "one value"),
        ("pp-size", datetime.date(2026, 1, 2), "2026-01-02"),
        ("pp-size", {"a": 1}, "whole number"),
        ("mem-fraction-static", "90%", "a number"),
        ("max-total-tokens", "many", "whole number"),
        ("preferred-sampling-params", "temperature=1", "JSON"),
        ("trust-remote-code", 1, "switch"),
        ("trust-remote-code", "maybe", "switch"),
        ("revision", "None", "takes a value"),
        ("revision", "__omit_place_holder__05e9", "takes a value"),
        ("revision", False, "takes a value"),
        ("cuda-graph-bs", "[1, 2]", "takes a list"),
        ("cuda-graph-bs", [1, "two"], "whole number"),
        ("cuda-graph-bs", [1, None], "flat list"),
        ("cuda-graph-bs", [[1, 2]], "flat list"),
        ("lora-paths", ["a", "--b"], "takes a list"),
    ],
)
def test_wrong_types_are_refused(table: FlagTable, flag: str, value: object, seen: str) -> None:
    (finding,) = check({flag: value}, table)
    assert (finding.id, finding.severity) == ("flag.type", "error")
    assert finding.seen.startswith(f"--{flag} ")
    assert seen in finding.seen
    with pytest.raises(ValueError, match=r"flag\.type"):
        arguments({flag: value}, table)


def test_a_value_outside_the_choices_names_the_nearest(table: FlagTable) -> None:
    (finding,) = check({"attention-backend": "tritn"}, table)
    assert finding.id == "flag.choice"
    assert finding.remedy.startswith("Use 'triton'")
    assert check({"schedule-conservativeness": 1, "grammar-backend": "none", "sm-group-num": 8}, table) == []


def test_names_must_be_exact(table: FlagTable) -> None:
    assert ids({"tensor-parallel": 8, "tp_size": 8, "no-such-thing": 8, "--": 1}, table) == [
        "flag.abbreviation",
        "flag.underscore",
        "flag.unknown",
        "flag.unknown",
    ]
    assert "--mem-fraction-static" in check({"mem-fraction-statik": 1}, table)[0].remedy


def test_two_spellings_of_one_flag_are_refused(table: FlagTable) -> None:
    assert ids({"tp-size": 8, "tensor-parallel-size": 8}, table) == ["flag.twice"]
    assert ids({"tp-size": 8, "--tp-size": 8}, table) == ["flag.twice"]
    assert ids({"tp-size": None, "tensor-parallel-size": 8}, table) == []


@pytest.mark.parametrize("flag", ["api-key", "admin-api-key", "ssl-keyfile-password"])
def test_secrets_are_refused_and_not_repeated(table: FlagTable, flag: str) -> None:
    (finding,) = check({flag: "hunter2"}, table)
    assert (finding.id, finding.severity) == ("flag.secret", "error")
    assert "by a file" in finding.remedy
    assert "hunter2" not in str(finding)
    with pytest.raises(ValueError, match=r"^(?!.*hunter2)"):
        arguments({flag: "hunter2"}, table)
    assert check({flag: None}, table) == []


def test_switches_with_two_spellings(table: FlagTable) -> None:
    assert arguments({"record-nolora-graph": True}, table) == [["--record-nolora-graph"]]
    assert arguments({"record-nolora-graph": False}, table) == [["--no-record-nolora-graph"]]
    assert arguments({"no-record-nolora-graph": "true"}, table) == [["--no-record-nolora-graph"]]


@pytest.mark.parametrize(
    "flags",
    [
        {"chunked-prefill-size": -1},
        {"chat-template": "-odd name"},
        {"chat-template": "--odd"},
        {"model-checksum": True},
        {"max-total-tokens": "1.5k"},
        {"json-model-override-args": {"a": [1, "é"]}},
        {"lora-paths": [{"lora_name": "a", "lora_path": "/b c"}, "d=/e"]},
        {"preferred-sampling-params": {"temperature": 0.5}},
    ],
)
def test_arguments_reach_a_parser_unchanged(table: FlagTable, flags: dict[str, object]) -> None:
    """Parsed by argparse with the flag's own shape; the texts must come out as they went in."""
    ((key, value),) = flags.items()
    flag = table[f"--{key}"]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    nargs = "*" if flag.kind == "list" else "?" if flag.bare else None
    parser.add_argument(flag.name, dest="value", nargs=nargs, const="bare" if flag.bare else None)
    (words,) = arguments(flags, table)
    got = parser.parse_args(words).value
    if isinstance(value, list):
        assert got == ['{"lora_name":"a","lora_path":"/b c"}', "d=/e"]
    elif isinstance(value, dict):
        assert got in ('{"a":[1,"é"]}', '{"temperature":0.5}')
    else:
        assert got == ("bare" if value is True else str(value))


def test_the_order_given_is_kept(table: FlagTable) -> None:
    assert [argument[0] for argument in arguments({"port": 1, "host": "::1", "--pp-size": 2}, table)] == [
        "--port",
        "--host",
        "--pp-size",
    ]
