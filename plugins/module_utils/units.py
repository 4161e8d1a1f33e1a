# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Arguments and environment to the text of a systemd unit, and any service unit back to arguments and environment.

Sources: systemd.syntax(7), systemd.service(5) "Command lines", systemd.exec(5) "Environment="; where they leave a case
open, systemd 252 itself (``SYSTEMD_LOG_LEVEL=debug systemd-analyze verify`` prints the command line that it read).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

SOURCE = "systemd.service(5)"

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""A system unit's PATH where none is set; systemd leaves out /sbin and /bin where they are links."""

_QUOTING_REMEDY = "Close the quotes and double the backslashes that stand for themselves"

_WHITESPACE = " \t\n\r"
# What systemd's utf8_is_valid() refuses: U+FDD0 to U+FDEF, and the last two of each plane.
_LAST_TWO = "".join(chr(plane + last) for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF))
_NONCHARACTERS = re.compile(f"[\ufdd0-\ufdef{_LAST_TWO}]")
_ESCAPES = {chr(code): f"\\x{code:02x}" for code in (*range(1, 32), 127)}
_ESCAPES |= {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": r"\\", '"': r"\""}
_UNESCAPES = {**dict(zip("abfnrtvs", "\a\b\f\n\r\t\v ", strict=True)), "\\": "\\", '"': '"', "'": "'"}
_CODE = re.compile(r"x(?P<byte>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})")


def quote_exec(argument: str) -> str:
    """One argument of ExecStart=, so that the program receives it unchanged.

    Not for the program's own path, in which systemd does not replace ``$$``. Raises ValueError for text that no
    program can be given (NUL, or not encodable as UTF-8) or no unit can hold (noncharacters of Unicode).
    """
    return _quote(argument.replace("%", "%%").replace("$", "$$"))


def quote_environment(name: str, value: str) -> str:
    """One assignment of Environment=, in which ``$`` has no meaning. Raises ValueError like ``quote_exec``, and for a
    name that cannot be a variable's.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} cannot be the name of an environment variable")
    return _quote(f"{name}={value}".replace("%", "%%"))


def _quote(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_./:=,@%$+-]+", text):
        return text
    if "\0" in text:
        raise ValueError("A program cannot be given a NUL character")
    if noncharacter := _NONCHARACTERS.search(text):
        raise ValueError(f"systemd refuses a line with the noncharacter U+{ord(noncharacter[0]):04X}")
    text.encode()
    quoted = "".join(_ESCAPES.get(character, character) for character in text)
    return f'"{quoted}"'


@dataclass(frozen=True)
class Unit:
    """A service unit as systemd reads it.

    ``sections``     section -> its assignments in order, values as they are written, continued lines joined
    ``commands``     the ExecStart= commands in force, without the prefixes of the program (``-@:+!``)
    ``environment``  the variables of Environment= in force; files of EnvironmentFile= are not read
    ``findings``     what systemd would refuse or ignore, and what only the node can resolve and is left as written
    """

    sections: Mapping[str, list[tuple[str, str]]]
    commands: list[list[str]] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def argv(self) -> list[str]:
        """The command of a service that has one; empty if it has none."""
        return self.commands[0] if self.commands else []


def parse_unit(text: str) -> Unit:
    """Read the text of a service unit; drop-ins must be appended to it by the caller."""
    sections: dict[str, list[tuple[str, str]]] = {}
    section = ""
    for line in _lines(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            sections.setdefault(section, [])
        elif section and "=" in line:
            key, value = line.split("=", 1)
            sections[section].append((key.strip(_WHITESPACE), value.strip(_WHITESPACE)))
    reader = _Reader()
    service = sections.get("Service", [])
    for key, value in service:
        if key == "Environment":
            reader.environment_line(value)
    for key, value in service:
        if key == "ExecStart":
            reader.command_line(value)
    return Unit(sections, reader.commands, reader.environment, reader.findings)


def _lines(text: str) -> Iterator[str]:
    """Logical lines: without comments, also inside a continued line, and with continued lines joined by a space."""
    held = ""
    for line in re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff")):
        if line.strip(_WHITESPACE)[:1] in ("#", ";"):
            continue
        held += line
        if (len(held) - len(held.rstrip("\\"))) % 2:
            held = held[:-1] + " "
            continue
        yield held.strip(_WHITESPACE)
        held = ""
    yield held.strip(_WHITESPACE)


class _Reader:
    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.environment: dict[str, str] = {}
        self.findings: list[Finding] = []

    def environment_line(self, value: str) -> None:
        if not value:
            self.environment.clear()
        words, fault = _split(value, unknown_escapes=False)
        for _written, word in words:
            name, equals, content = word.partition("=")
            if equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self.environment[name] = self._specifiers(content, f"Environment={name}")
            else:
                # A word without a name may be the second half of a secret that was not quoted.
                what = f"the name {name!r}" if equals else "a word without a name"
                self._warn("assignment", f"systemd ignores {what} in Environment=", 'Write "NAME=value"')
        if fault:
            self._warn("quoting", f"systemd ignores the rest of an Environment= line: {fault}", _QUOTING_REMEDY)

    def command_line(self, value: str) -> None:
        if not value:
            self.commands.clear()
            return
        words, fault = _split(value, unknown_escapes=True)
        if fault:
            seen = f"systemd refuses the unit for its ExecStart=: {fault}"
            self.findings.append(Finding("unit.quoting", "error", seen, _QUOTING_REMEDY, SOURCE))
            return
        while words:
            raws = [word[0] for word in words]
            end = raws.index(";", 1) if ";" in raws[1:] else len(raws)
            self._command(words[:end])
            words = words[end + 1 :]

    def _command(self, words: list[tuple[str, str]]) -> None:
        first = words[0][1]
        program = first.lstrip("-@:+!")
        prefixes = first[: len(first) - len(program)]
        command = [self._specifiers(program, "ExecStart=")]
        for raw, word in words[2 if "@" in prefixes else 1 :]:
            argument = ";" if raw == r"\;" else self._specifiers(word, "ExecStart=")
            command += [argument] if ":" in prefixes else self._variables(argument)
        self.commands.append(command)

    def _specifiers(self, word: str, where: str) -> str:
        for specifier in sorted(set(re.findall(r"%[A-Za-z0-9]", word.replace("%%", "")))):
            self._warn(
                "specifier",
                f"systemd takes {specifier} in {where} for a specifier",
                f"Write %{specifier} if the text itself is meant",
            )
        return word.replace("%%", "%")

    def _variables(self, word: str) -> list[str]:
        """What systemd makes of one argument: ``$NAME`` alone is split into words, ``${NAME}`` is not."""
        if word.startswith("$") and word[1:2] not in ("$", "{"):
            value = self._variable(word[1:])
            return [word] if value is None else [part[1] for part in _split(value, unknown_escapes=True)[0]]

        def meant(match: re.Match[str]) -> str:
            value = "$" if match[1] is None else self._variable(match[1])
            return match[0] if value is None else value

        return [re.sub(r"\$(?:\$|\{([^}]*)\})", meant, word)]

    def _variable(self, name: str) -> str | None:
        if name not in self.environment:
            self._warn(
                "variable",
                f"ExecStart= refers to the variable {name}, which Environment= does not set",
                "Set it with Environment=, or write $$ if the text itself is meant",
            )
        return self.environment.get(name)

    def _warn(self, fault: str, seen: str, remedy: str) -> None:
        self.findings.append(Finding(f"unit.{fault}", "warning", seen, remedy, SOURCE))


def _split(text: str, *, unknown_escapes: bool) -> tuple[list[tuple[str, str]], str]:
    """The words of a line as ``(written, meant)``, up to the first fault, and that fault or an empty string.

    Quotes are removed wherever they stand, as systemd does it, though its manual has them around whole words only.
    An unknown escape stays as it is in ExecStart= and is a fault in Environment=.
    """
    words: list[tuple[str, str]] = []
    position, end = 0, len(text)
    while True:
        while position < end and text[position] in _WHITESPACE:
            position += 1
        if position == end:
            return words, ""
        start, quote, word = position, "", bytearray()
        while position < end and (quote or text[position] not in _WHITESPACE):
            character = text[position]
            position += 1
            if character == quote:
                quote = ""
            elif character in "'\"" and not quote:
                quote = character
            elif character == "\\":
                known = _unescape(text, position)
                if known is None and not unknown_escapes:
                    return words, f"unknown escape \\{text[position : position + 1]}"
                meant, length = known or (text[position - 1 : position + 1].encode("utf-8", "surrogateescape"), 1)
                word += meant
                position += length
            else:
                word += character.encode("utf-8", "surrogateescape")
        if quote:
            return words, f"no closing {quote}"
        words.append((text[start:position], word.decode("utf-8", "surrogateescape")))


def _unescape(text: str, position: int) -> tuple[bytes, int] | None:
    """The bytes that the escape after a backslash stands for, and its length; None if it is none of systemd's."""
    simple = _UNESCAPES.get(text[position : position + 1])
    if simple is not None:
        return simple.encode(), 1
    match = _CODE.match(text, position)
    if match:
        code = int(match[match.lastgroup or 0], 8 if match.lastgroup == "octal" else 16)
        if match.lastgroup in ("byte", "octal") and code:
            return bytes([code]), len(match[0])
        if 0 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF and match.lastgroup in ("u", "U"):
            return chr(code).encode(), len(match[0])
    return None
