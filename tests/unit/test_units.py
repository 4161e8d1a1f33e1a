# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Units: quoting and its way back, against the rules written here and, where it is installed, against systemd."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils.units import parse_unit, quote_environment, quote_exec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FIXTURES = Path(__file__).parent / "fixtures"

HARD = [
    "",
    " ",
    "plain",
    "a b",
    "\ttab\nnew line\r\n",
    "100%",
    "50% of max, cost $5",
    "%h%%n",
    "$HOME",
    "$$",
    "${HOME}",
    'say "hi" 100%free',
    "it's",
    "\\",
    r"C:\new\x41",
    "ends in \\",
    '{"rope_scaling": {"factor": 2.0}, "note": "50% of max, cost $5"}',
    ";",
    r"\;",
    "#no comment",
    "-@:+!",
    "naïve 模型 🚀",
    "\x01\x1b\x7f",
    "\u0085\u2028\u00a0\ufeff",
    'a"b$c%d',
]

# Words that a program can be given, made of what means something to systemd and of anything else.
PIECES = [*"ab $%\"'\\;{}#\n\t=-", "$$", "${A}", "$A", "%%", "%h", r"\n", r"\x41", r"\u00e9", '{"a": [1, "b c"]}']
# Not what has no UTF-8, and not the noncharacters, in a unit's line with which systemd refuses all of it.
NONCHARACTERS = [*range(0xFDD0, 0xFDF0), *(plane * 0x10000 + last for plane in range(17) for last in (0xFFFE, 0xFFFF))]
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters=["\0", *map(chr, NONCHARACTERS)])
TEXT = st.lists(st.sampled_from(PIECES) | CHARACTERS, max_size=12).map("".join)


def unit(arguments: list[str], environment: dict[str, str]) -> str:
    """As the role's template writes it: every argument on its own line."""
    lines = ["[Service]", "Type=oneshot"]
    lines += [f"Environment={quote_environment(name, value)}" for name, value in environment.items()]
    lines += ["ExecStart=/bin/true \\", " \\\n".join(f"    {quote_exec(argument)}" for argument in arguments)]
    return "\n".join(lines) + "\n"


@given(st.lists(TEXT, max_size=8), st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True), TEXT))
def test_what_is_quoted_is_read_back(strings: list[str], environment: dict[str, str]) -> None:
    read = parse_unit(unit(strings, environment))
    assert read.argv == ["/bin/true", *strings]
    assert read.environment == environment
    assert read.findings == []


def test_the_hard_ones_are_read_back() -> None:
    environment = {f"V{number}": string for number, string in enumerate(HARD)}
    read = parse_unit(unit(HARD, environment))
    assert (read.argv, read.environment, read.findings) == (["/bin/true", *HARD], environment, [])


def test_systemd_reads_the_hard_ones_as_meant(tmp_path: Path) -> None:
    meant_as_read(HARD, tmp_path)


# Each example is one systemd-analyze, so they are few and long.
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXT, min_size=100, max_size=150))
def test_systemd_reads_what_was_meant(tmp_path: Path, strings: list[str]) -> None:
    meant_as_read(strings, tmp_path)


def meant_as_read(strings: list[str], folder: Path) -> None:
    # systemd's dump is of lines.
    strings = [string for string in strings if "\n" not in string]
    environment = {f"V{number}": string for number, string in enumerate(strings)}
    argv, seen = systemd(unit(strings, environment), folder)
    assert [word.replace("$$", "$") for word in argv] == ["/bin/true", *strings]
    assert seen == environment


@pytest.mark.parametrize(
    "line",
    [
        r"a \x41\101\u00e9\U0001F680\s\t",
        r"""foo"bar baz" 'a "b" c' "it's" """,
        r""" "a\"b" 'c\'d' """,
        r"\; x;y",
        r"unknown \z and \ kept",
        r"%% 100%%",
        r"'\xc3\xa9'",
    ],
)
def test_words_are_split_as_systemd_splits_them(line: str, tmp_path: Path) -> None:
    text = f"[Service]\nType=oneshot\nExecStart=/bin/true {line}\n"
    assert parse_unit(text).argv == systemd(text, tmp_path)[0]


def systemd(text: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment in systemd's own dump of a unit, in which $$ is not replaced yet."""
    (folder / "example.service").write_text(text, encoding="utf-8")
    settings = {
        "SYSTEMD_LOG_LEVEL": "debug",
        "SYSTEMD_LOG_TARGET": "console",
        "SYSTEMD_LOG_COLOR": "0",
        "SYSTEMD_UNIT_PATH": f"{folder}:",
    }
    dump = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "example.service"],
        env={**os.environ, **settings},
        capture_output=True,
        check=True,
    ).stdout.decode()
    dump = dump.partition("-> Unit example.service:")[2].partition("-> Unit ")[0]
    (command,) = re.findall(r"^\t+Command Line: (.*)$", dump, re.MULTILINE)
    words = [
        plain or re.sub(r"\\(x[0-9a-f]{2}|[0-7]{3}|.)", unescaped, quoted)
        for quoted, plain in re.findall(r'"((?:\\.|[^"\\])*)"|([^ ]+)', command)
    ]
    return words, dict(re.findall(r"^\t+Environment: ([^=]+)=(.*)$", dump, re.MULTILINE))


def unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 3:
        return chr(int(code[1:], 16) if code[0] == "x" else int(code, 8))
    return {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}.get(code, code)


@pytest.mark.parametrize(
    ("argument", "quoted"),
    [
        ("--pp-size", "--pp-size"),
        ("50%", "50%%"),
        ("$5", "$$5"),
        ("", '""'),
        ("a b", '"a b"'),
        ('"', r'"\""'),
        ("\\", r'"\\"'),
        ("\n", r'"\n"'),
        ("\x1b", r'"\x1b"'),
        ("#", '"#"'),
    ],
)
def test_arguments_are_quoted_only_as_far_as_needed(argument: str, quoted: str) -> None:
    assert quote_exec(argument) == quoted


def test_a_dollar_is_literal_in_environment() -> None:
    assert quote_environment("BANNER", 'say "hi" 100%free for $5') == r'"BANNER=say \"hi\" 100%%free for $5"'
    assert quote_environment("HF_HOME", "/srv/model store") == '"HF_HOME=/srv/model store"'


def test_what_no_program_can_be_given_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote_exec("a\0b")
    with pytest.raises(ValueError, match="surrogates"):
        quote_exec("\udcff")
    for number in NONCHARACTERS:
        with pytest.raises(ValueError, match=f"U\\+{number:04X}"):
            quote_environment("A", chr(number))
    for name in ("", "1A", "A B", "A-B", "É"):
        with pytest.raises(ValueError, match="name of an environment variable"):
            quote_environment(name, "x")


def test_the_units_of_the_story() -> None:
    naive, repaired = (
        parse_unit((FIXTURES / f"story_{name}.service").read_text(encoding="utf-8")) for name in ("naive", "repaired")
    )
    for read in (naive, repaired):
        assert read.argv[:3] == ["/root/venv_sglang211/bin/python", "-m", "sglang.launch_server"]
        assert read.argv[-2:] == ["--grammar-backend", "none"]
        assert read.environment == {"NCCL_IB_DISABLE": "1", "NCCL_P2P_LEVEL": "5", "NCCL_ALGO": "Ring"}
        assert ("Restart", "always") in read.sections["Service"]
        assert read.findings == []
    assert set(naive.argv) - set(repaired.argv) == {"--disable-cuda-graph"}
    assert repaired.argv[repaired.argv.index("--pp-async-batch-depth") + 1] == "8"


BY_HAND = r"""
# PATH and the like
[Unit]
Description = one \
; a comment inside a continued line, ending in a backslash \
  # another
  two
ExecStart=/not/in/this/section

[Service]
Environment=GONE=1
Environment=
Environment="A=x y" 'B="q"' C=\x41\n D=50%% E=$literal
Environment=A=later
ExecStart=/gone
ExecStart=
ExecStart = -@/usr/bin/python3 shown -m "sglang.launch_server" \
    --model-path '/srv/m o d e l' \
    # --disable-cuda-graph \
    --port=${PORT} $FLAGS $$5 50%% \
    --last
Environment=PORT=30001 "FLAGS=--tp-size 8 'two words'"
[Install]
WantedBy=multi-user.target"""


def test_a_unit_written_by_hand() -> None:
    read = parse_unit(BY_HAND)
    assert read.sections["Unit"][0] == ("Description", "one    two")
    assert read.environment == {
        "A": "later",
        "B": '"q"',
        "C": "A\n",
        "D": "50%",
        "E": "$literal",
        "PORT": "30001",
        "FLAGS": "--tp-size 8 'two words'",
    }
    start = ["/usr/bin/python3", "-m", "sglang.launch_server", "--model-path", "/srv/m o d e l"]
    assert read.commands == [[*start, "--port=30001", "--tp-size", "8", "two words", "$5", "50%", "--last"]]
    assert read.sections["Install"] == [("WantedBy", "multi-user.target")]
    assert read.findings == []


def test_an_escaped_backslash_continues_no_line() -> None:
    assert parse_unit("[Service]\nEnvironment=A=a\\\\\nEnvironment=B=1\n").environment == {"A": "a\\", "B": "1"}


def test_several_commands() -> None:
    read = parse_unit('[Service]\nExecStart=/bin/a 1 ; /bin/b ; \nExecStart=:/bin/c $$x \\; ";"\n')
    assert read.commands == [["/bin/a", "1"], ["/bin/b"], ["/bin/c", "$$x", ";", ";"]]
    assert read.argv == ["/bin/a", "1"]
    assert parse_unit("").argv == []


@pytest.mark.parametrize(
    ("line", "fault", "seen"),
    [
        ('ExecStart=/bin/a "b', "unit.quoting", "no closing"),
        (r"Environment=A=C:\dir B=2", "unit.quoting", "unknown escape"),
        ("Environment=1A=2", "unit.assignment", "1A"),
        ("Environment=PASS=my secret", "unit.assignment", "a word without a name"),
        ("ExecStart=/bin/a 50%free", "unit.specifier", "%f"),
        ("Environment=BANNER=100%free", "unit.specifier", "Environment=BANNER"),
        ("ExecStart=/bin/a $PORT", "unit.variable", "PORT"),
        ("ExecStart=/bin/a --port=${PORT}", "unit.variable", "PORT"),
    ],
)
def test_what_systemd_would_not_take_as_written_is_found(line: str, fault: str, seen: str) -> None:
    (finding,) = parse_unit(f"[Service]\n{line}\n").findings
    assert finding.id == fault
    assert seen in finding.seen
    assert "secret" not in str(finding)
    assert finding.severity == ("error" if line.startswith("ExecStart") and fault == "unit.quoting" else "warning")


def test_what_only_the_node_knows_stays_as_written() -> None:
    read = parse_unit("[Service]\nExecStart=%h/bin/a --port=${PORT} $FLAGS\n")
    assert read.argv == ["%h/bin/a", "--port=${PORT}", "$FLAGS"]
