"""What a tool was asked and what came of it: at a third of its length, and in one line.

    tool shell(pytest -q) → 3 failed, 12 passed in 1.2s          S, shortened where it is long
    shell `pytest -q` was called: 3 failed, 12 passed in 1.2s    C

Neither looks like the markup of a real call: a model that reads it must not learn to write it. Most
bytes of a conversation pass through here, so work is in proportion to what is kept, but for
counting lines, taking the JSON off, and looking for the errors of what failed.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from perdure.core.display import one_line, plural
from perdure.core.messages import ArtifactPointer, Media, Text, ToolCall, ToolResult
from perdure.history.excerpt import EXIT_CODE, ends, looks_failed, unwrap
from perdure.history.gist import asked, described
from perdure.history.renditions.line_choice import names_in_line, telling_lines, without_numbers
from perdure.history.renditions.unit_weights import is_idle

#: Of what a tool answers S keeps this share, of what it is given more (a model comes back to what
#: it wrote); and at least so many characters.
SHARE, _WRITTEN_SHARE, SHORT = 0.26, 0.40, 360
#: Short outputs are mostly an answer, long ones mostly a listing: so the first stay whole, and of
#: the others a little less is kept, so that all together come to a third.
_LONGEST_ASKED = {"S": 240, "C": 90}
_LONGEST_CAME = 160
_LONGEST_HEAD = 56  # Characters of a call whose lines follow.
_SHORTEST = 24  # Characters of an outcome that is told whatever it says.
#: Of a text of so many characters C tells some lines: a share of it, at most so many characters.
_NAMED_FROM, _NAMED_SHARE, _NAMED_MOST = 1_000, 0.06, 480
_LONGEST_LINE = 600
_LONGEST_WORD = 60
#: What failed is shown whole if it is no longer, and the rest was dots.
_FAILURES = 1_200
_MANY_LINES = 5_000
_LARGE = 50_000  # Of a larger output, only what is kept of it is cleaned.
_WINDOW = 2_000  # Where a program says how it went: so many characters from the end.

# Lines that tell what came of a command.
_summary = re.compile(
    r"\b\d+ (?:passed|failed|skipped|errors?|warnings?|tests?|files? changed|problems?|insertions?"
    r"|packages?|vulnerabilities|rows?|matches|results?|items?)\b|\b(?:[Ss]uccessfully|succeeded"
    r"|Success\b[.:!]|completed|[Ff]inished|created|[Uu]pdated|installed|[Cc]ompiled|[Bb]uilt|Done|OK"
    r"|PASS|BUILD)\b"
).search
_LAST_LINES = 6
_error = re.compile(
    r"^.*(?:(?:Error|Exception)\b.*|\b(?:error|fatal|panic|failed|FAILED|FAIL|ERROR"
    r"|denied|not found|No such file|cannot|Cannot|Unable|unable|does not|is not|missing)\b.*)$",
    re.MULTILINE,
)
_telling = re.compile(r"[^\W\d_]{2}").search
_escapes = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)")
_progress = re.compile(r"^[^\n]*\r(?!\n)", re.MULTILINE)
_blank_lines = re.compile(r"\n[ \t]*(?:\n[ \t]*)+\n")
# Rows that say of each test only that it passed.
_passed = re.compile(r"^(?:\S{1,200} )?[.sx]{3,200}(?: +\[ *\d+%\])?\n", re.MULTILINE).search
_passed_lines = re.compile(r"(?:^(?:\S{1,200} )?[.sx]{3,200}(?: +\[ *\d+%\])?\n){2,}", re.MULTILINE)
_failed_test = re.compile(r"^(?:FAILED|ERROR) (\S.*)$", re.MULTILINE).findall
_wrapping = re.compile(
    r"^</?(?:tool_use_error|error|stdout|stderr|output|result)>|</(?:tool_use_error|error|stdout|stderr|output|result)>\s*$"
)


class Printed(NamedTuple):
    """A tool's output without the JSON around it; cleaned, unless it is large."""

    output: str
    failed: bool = False
    code: int | None = None
    trouble: bool = False  # It failed, or looks as if it had.


class Used(NamedTuple):
    """A call and its result; either can be missing."""

    call: ToolCall | None
    result: ToolResult | None
    printed: Printed

    @classmethod
    def of(cls, call: ToolCall | None, result: ToolResult | None) -> Used:
        return cls(call, result, _printed(result) if result is not None else Printed(""))

    @property
    def name(self) -> str:
        name = self.call.name if self.call else self.result.name if self.result else ""
        return name or "tool"


def excerpt(text: str, place: str, *, trouble: bool = False, share: float = SHARE) -> str:
    if len(text) <= SHORT:
        return text
    cap = max(int(len(text) * share), SHORT * 3 // 4)
    if trouble and len(text) <= _LARGE and _passed(text):
        text = _passed_lines.sub(_counted, text)
        if len(text) <= max(cap, _FAILURES):
            return text
    if (
        not trouble
        and len(text) <= _LARGE
        and (lines := telling_lines(text, cap, ends=1)) is not None
    ):
        left = text.count("\n") + 1 - len(lines)
        notice = f"[… {plural(left, 'line')} left out but for these; the whole result: {place}]"
        first = next((at for at, number in enumerate(lines) if at != number), len(lines))
        said = list(lines.values())
        return "\n".join([*said[:first], notice, *said[first:]])
    short = ends(text, _MANY_LINES, _MANY_LINES, cap, place, look=True, failed=trouble)
    return _between_words(text, short) if len(short) < len(text) * 0.8 else text


def _counted(rows: re.Match[str]) -> str:
    many = rows[0].count("\n")
    return f"[… {plural(many, 'line')} of dots]\n"


def _between_words(text: str, short: str) -> str:
    begin, notice, rest = short.partition("\n[… ")
    if not notice or not text.startswith(begin):
        return short
    if begin and text[len(begin) : len(begin) + 1].strip():
        space = begin.rfind(" ", len(begin) - _LONGEST_WORD)
        begin = f"{begin[:space]}…" if space > 0 else begin
    said, _, tail = rest.partition("]\n")
    if "but for these" in said:
        middle, mark, tail = tail.partition("[…]\n")
        lines = (_to_a_word(text, line) for line in middle.splitlines())
        said = "".join((f"{said}]\n", *(f"{line}\n" for line in lines), mark))
    else:
        said = f"{said}]\n"
    if tail and len(tail) < len(text) and text.endswith(tail) and text[-len(tail) - 1].strip():
        space = tail.find(" ", 0, _LONGEST_WORD)
        tail = f"…{tail[space:]}" if space >= 0 else tail
    return f"{begin}{notice}{said}{tail}"


def _to_a_word(text: str, line: str) -> str:
    end = text.find(line) + len(line)
    space = line.rfind(" ", 1)
    return f"{line[:space]}…" if space > 0 and text[end : end + 1].strip() else line


def smooth_use(used: Used, place: str) -> str:
    begin = f"tool {used.name}({one_line(_asked(used.call), _LONGEST_ASKED['S'])})"
    body = _body(used.call, place)
    if body:
        begin = f"{begin} with\n{body}\n"
    else:
        begin += " "
    if used.result is None:
        return f"{begin}→ no result"
    words = _smooth_result(used.result, used.printed, place)
    return f"{begin}→\n{words}" if "\n" in words else f"{begin}→ {words}"


def compact_use(used: Used, *, brief: bool = False) -> str:
    """C of a call and its result in one line; with `brief`, without saying that it was called."""
    whole = _asked(used.call)
    what = one_line(whole, _LONGEST_ASKED["C"]).replace("`", "'")
    begin = f"{used.name} `{what}`" if what else used.name
    if not brief:
        begin += " was called"
    if used.result is None:
        return begin
    came = came_of(used.result, used.printed)
    if len(whole) > 8:
        came = came.replace(whole, "…")  # its path, said once more
    if not used.printed.trouble and (named := _named_in(used)):
        came = f"{came}; {named}"
    return f"{begin}: {came}"


def call_line(used: Used) -> tuple[str, str]:
    """A call, and what came of it, in a few words, where lines of both follow: see `run_text`. Of
    what worked, only what tells something new.
    """
    what = _beginning_or_end(_asked(used.call), _LONGEST_HEAD).replace("`", "'")
    begin = f"{used.name} `{what}`" if what else used.name
    if used.result is None:
        return begin, ""
    came = came_of(used.result, used.printed)
    if used.printed.failed or used.printed.trouble:
        return begin, came
    lines = used.printed.output.count("\n") + 1
    if lines > 1 and not _summary_line(cleaned(used.printed.output[-_WINDOW:])):
        return begin, ""
    named = set(names_in_line(_asked(used.call)))
    new = any(name not in named for name in names_in_line(came)) or any(map(str.isdigit, came))
    return begin, came if used.printed.output and (new or len(came) <= _SHORTEST) else ""


def lines_of(used: Used) -> tuple[list[str], list[str]]:
    """The lines that a model wrote in a call, and those that it read: what is long is cut short,
    numbers and marks of changes in front of lines are left out.
    """
    arguments = used.call.arguments if used.call is not None else ""
    written = "\n".join(_long_strings(arguments))
    if not written and len(arguments) > _LONGEST_HEAD:
        written = _asked(used.call)
    read = "" if used.printed.failed else used.printed.output  # its error is told anyway
    return _bare_lines(written), _bare_lines(read)


def _bare_lines(text: str) -> list[str]:
    lines = without_numbers(text[:_LARGE]).split("\n")
    return [" ".join(line.lstrip("+- \t").split()) for line in lines if len(line) <= _LONGEST_LINE]


def _beginning_or_end(text: str, most: int) -> str:
    """On one line. What has no blanks is mostly a path, and its end tells more."""
    if len(text) <= most or " " in text:
        return one_line(text, most)
    return f"…{text[1 - most :]}"


def _named_in(used: Used) -> str:
    """A few lines of a long output, or of what was written: those that name most."""
    text = used.printed.output[:_LARGE]
    if used.call is not None and len(used.call.arguments) > len(text):
        text = "\n".join(_long_strings(used.call.arguments))[:_LARGE]
    if len(text) < _NAMED_FROM:
        return ""
    cap = min(int(len(text) * _NAMED_SHARE), _NAMED_MOST)
    lines = telling_lines(text, cap, ends=0)
    return " · ".join(" ".join(line.split()) for line in (lines or {}).values())


def came_of(result: ToolResult, printed: Printed) -> str:
    output, failed, code, trouble = printed
    lines = output.count("\n") + 1 if output else 0
    tail = cleaned(output[-_WINDOW:])
    if failed or (lines > 1 and trouble):
        line = (
            _failed_tests(tail)
            or _error_line(output)
            or _summary_line(tail)
            or output.partition("\n")[0]
        )
        said = one_line(line, _LONGEST_CAME)
        exit_code = f" (exit code {code})" if code else ""
        # Not everything that looks like it did fail.
        if not failed:
            return f"{said}{exit_code}" if said else "done"
        return f"failed{exit_code}: {said}" if said else f"failed{exit_code}"
    notes = _notes(result)
    if not output:
        return notes or "no output"
    if lines <= 4 and len(output) <= _LONGEST_CAME:
        output = cleaned(output)
        telling = [line for line in output.splitlines() if _telling(line)]
        return " ".join([*" ".join(telling or [output]).split(), *filter(None, [notes])])
    line = _summary_line(tail) if lines > 1 else ""
    if not line:
        head = one_line(_first_line(output), 60)
        line = f"{plural(lines, 'line')}: {head}" if lines > 1 else head
    elif lines > 12:
        line = f"{line} ({plural(lines, 'line')})"
    return " ".join(filter(None, [one_line(line, _LONGEST_CAME), notes]))


def _smooth_result(result: ToolResult, printed: Printed, place: str) -> str:
    output, failed, code, trouble = printed
    words = excerpt(output, place, trouble=trouble)
    if len(output) > _LARGE:
        words = cleaned(words)
    if failed:
        said = f"failed (exit code {code})" if code else "failed"
        words = f"{said}: {words}" if words and "\n" not in words else f"{said}\n{words}".strip()
    notes = _notes(result)
    return "\n".join(filter(None, [words, notes])) or "nothing"


def _printed(result: ToolResult) -> Printed:
    texts = [part.text for part in result.content if isinstance(part, Text) and part.text]
    heads = [part.head for part in result.content if isinstance(part, ArtifactPointer)]
    text = "\n".join((*texts, *heads)) if len(texts) + len(heads) != 1 else (texts or heads)[0]
    whole = unwrap(text)
    output = "\n".join(each.strip("\n") for each in whole.texts if each).strip("\n")
    failed = result.is_error or whole.failed
    code = None
    if failed:
        wrapping = whole.wrap([""] * len(whole.texts)) if output != text.strip("\n") else text[:200]
        found = EXIT_CODE.search(wrapping)
        code = int(found[1]) if found and len(found[1]) < 12 else None
    if len(output) <= _LARGE:
        output = cleaned(output)
    return Printed(output, failed, code, failed or looks_failed(output))


def cleaned(output: str) -> str:
    """Without colours, overwritten text, and runs of blank lines."""
    if "\x1b" in output:
        output = _escapes.sub("", output)
    if "\x00" in output or "\x08" in output:
        output = output.replace("\x00", "").replace("\x08", "")
    if "\r" in output:
        output = _progress.sub("", output.replace("\r\n", "\n"))
    if "\n\n\n" in output:
        output = _blank_lines.sub("\n\n", output)
    if output.startswith("<") and len(output) < 4_000:
        output = _wrapping.sub("", _wrapping.sub("", output)).strip("\n")
    return output


def _notes(result: ToolResult) -> str:
    media = [described(part) for part in result.content if isinstance(part, Media)]
    return " ".join(f"[{each}]" for each in media)


def _asked(call: ToolCall | None) -> str:
    return asked(call) if call is not None else ""


def _body(call: ToolCall | None, place: str) -> str:
    if call is None or len(call.arguments) <= _LONGEST_ASKED["S"] + 60:
        return ""
    strings = _long_strings(call.arguments)
    if not strings:
        return ""
    text = "\n".join(strings)
    return excerpt(text, place, share=_WRITTEN_SHARE) if len(text) > SHORT else ""


def _long_strings(arguments: str) -> list[str]:
    if not arguments.lstrip().startswith(("{", "[")):
        return [arguments]
    try:
        left: list[Any] = [json.loads(arguments)]
    except (ValueError, RecursionError):
        return [arguments]
    found: list[str] = []
    while left:
        value = left.pop()
        if isinstance(value, str):
            if len(value) > _LONGEST_LINE or "\n" in value:  # shorter ones are told by `asked`
                found.append(value)
        elif isinstance(value, dict):
            left += reversed(value.values())
        elif isinstance(value, list):
            left += reversed(value)
    return found


def _summary_line(tail: str) -> str:
    lines = [line for line in tail.splitlines()[-_LAST_LINES:] if _summary(line)]
    return lines[-1].strip(" =-") if lines else ""


def _failed_tests(tail: str) -> str:
    failed = _failed_test(tail)
    if not failed or not all("::" in each for each in failed):
        return ""
    names = failed if len(failed) == 1 else [each.partition(" - ")[0] for each in failed]
    count = _summary_line(tail)
    return f"{count}: {', '.join(names)}" if count else ", ".join(names)


def _first_line(output: str) -> str:
    lines = [line for line in output[:_WINDOW].splitlines()[:12] if line.strip()]
    telling = (line for line in lines if " " in line.strip() and not is_idle(line))
    return next(telling, lines[0] if lines else "")


def _error_line(output: str) -> str:
    for part in (output[-_WINDOW:], output[:_WINDOW]):
        lines = [found[0].strip() for found in _error.finditer(part)]
        named = [line for line in lines if re.match(r"(?:E\s+)?[\w.]*(?:Error|Exception)\b", line)]
        if named:
            return named[-1]
        if lines:
            return lines[0]
    return ""
