"""SessionStart: prints the preamble of the project, made before. Run by a bare Python (``-I -S``),
with nothing but the standard library: no bank is opened while the prebuilt text still fits.

The prebuilt file ``preamble/<work tree>.json`` holds ``branch``, ``commit`` and ``text``. If it is
of another branch or commit, or not there, Perdure itself is asked, within a deadline; failing that,
what is there is better than nothing.
"""

from __future__ import annotations

import json
import os
import sys

#: Seconds for a preamble that has to be made.
_PATIENCE = 6.0
#: Characters that Claude Code takes before it writes the text to a file instead.
_MOST = 9_500


def main(home: str, client: str) -> None:
    given = json.loads(sys.stdin.buffer.read() or b"{}")
    folder = str(given.get("cwd") or os.getcwd())
    tree, git_dir = _work_tree(folder)
    name = "main"
    if git_dir and os.path.realpath(git_dir) != os.path.realpath(os.path.dirname(home)):
        name = os.path.basename(git_dir)
    path = os.path.join(home, "preamble", f"{name}.json")
    found = _read(path)
    if not found or not _fits(found, git_dir):
        _ask_perdure(home, client, tree or folder, str(given.get("transcript_path") or ""))
        found = _read(path) or found
    text = str(found.get("text") or "")[:_MOST]
    if not text or (given.get("source") == "resume" and _was_given(home, given, text)):
        return
    _remember(home, given, text)
    # As `history.hook_context` writes it.
    text = text.strip().replace("</perdure-memory", "&lt;/perdure-memory")
    context = f'<perdure-memory source="hook">\n{text}\n</perdure-memory>'
    answer = {"hookEventName": "SessionStart", "additionalContext": context}
    sys.stdout.write(json.dumps({"hookSpecificOutput": answer}) + "\n")


def _read(path: str) -> dict[str, object]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _ask_perdure(home: str, client: str, folder: str, transcript: str) -> None:
    import subprocess

    words = ("preamble", home, client, folder, *([transcript] if transcript else []))
    command = ("-P", "-m", "perdure.integrations.client_hooks", *words)
    try:
        subprocess.run(  # noqa: S603
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return


# The conversation's own memory of what it was given: see `conversation_notes`.


def _note_path(home: str, given: dict[str, object]) -> str:
    name = "".join(char for char in str(given.get("session_id")) if char.isalnum() or char in "-_")
    return os.path.join(home, "conversations", f"{name[:80]}.json")


def _was_given(home: str, given: dict[str, object], text: str) -> bool:
    return _read(_note_path(home, given)).get("preamble") == _mark(text)


def _remember(home: str, given: dict[str, object], text: str) -> None:
    path = _note_path(home, given)
    note = _read(path)
    note["preamble"] = _mark(text)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        beside = f"{path}.{os.getpid()}"
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(note, file)
        os.replace(beside, path)
    except OSError:
        return


def _mark(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


# git, from its files: as `project.git_repository` does it -------------------------------------


def _work_tree(folder: str) -> tuple[str, str]:
    """The top of the work tree and its git folder; empty without git."""
    while True:
        link = os.path.join(folder, ".git")
        if os.path.isdir(link):
            return folder, link
        text = _line(link)
        if text.startswith("gitdir: "):
            return folder, os.path.normpath(os.path.join(folder, text.removeprefix("gitdir: ")))
        above = os.path.dirname(folder)
        if above == folder:
            return "", ""
        folder = above


def _fits(found: dict[str, object], git_dir: str) -> bool:
    if not git_dir:
        return True
    head = _line(os.path.join(git_dir, "HEAD"))
    if not head.startswith("ref: "):
        return (found.get("branch"), found.get("commit")) == ("", head)
    reference = head.removeprefix("ref: ")
    named = _line(os.path.join(git_dir, "commondir"))
    common = os.path.normpath(os.path.join(git_dir, named)) if named else git_dir
    commit = _line(os.path.join(common, reference)) or _packed(common, reference)
    branch = reference.removeprefix("refs/heads/")
    return (found.get("branch"), found.get("commit")) == (branch, commit)


def _packed(common: str, reference: str) -> str:
    try:
        with open(os.path.join(common, "packed-refs"), encoding="utf-8") as file:
            for line in file:
                commit, _, name = line.rstrip("\n").partition(" ")
                if name == reference:
                    return commit
    except (OSError, UnicodeDecodeError):
        pass
    return ""


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(4_096).strip()
    except OSError:
        return ""


def _note_failure(home: str, client: str, what: str) -> None:
    """As `hook_failures` does it."""
    import time

    with open(os.path.join(home, "client-failures"), "a", encoding="utf-8") as file:
        file.write(
            f"\n1\t{int(time.time())}\tSessionStart\t{client}\t{' '.join(what.split())[:500]}\n"
        )


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2])
    except Exception as exc:  # noqa: BLE001  # the client must not notice; doctor tells
        _note_failure(sys.argv[1], sys.argv[2], f"{type(exc).__name__}: {exc}")
