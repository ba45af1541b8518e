"""The shell of the git hooks: POSIX sh, no Python, one line appended to the spool.

A hook file is a shebang line and a *block*, or somebody's own script with the block behind its
first line. The block runs `SCRIPT`, which lies beside the spool; its output goes nowhere and nobody
sees its failure. In somebody's script it runs in a subshell. What follows in the file runs as it
did before, with the same arguments and the same input.
"""

from __future__ import annotations

import shlex

from perdure.config.pauses import pauses_file

#: The hooks that tell of history.
HOOKS = ("post-commit", "post-merge", "post-checkout", "post-rewrite")
#: What runs if a folder of hooks stands in for another one: every hook of a client's repository.
#: (Others, such as reference-transaction, change what git does by being there.)
CLIENT_HOOKS = (
    *HOOKS,
    "applypatch-msg",
    "commit-msg",
    "post-applypatch",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "prepare-commit-msg",
    "sendemail-validate",
)
#: The name of `SCRIPT` in the project's folder.
SCRIPT_NAME = "git-hook.sh"
#: A hook that has it in its environment notes the value, and does nothing else.
PROBE = "PERDURE_HOOK_PROBE"

#: Fields: version, time, hook, commit, branch, work tree, arguments. Lines stay below 4,000 bytes,
#: so that each is one write. A line begins with a newline: a torn one before it does not take it
#: along. Everything is read from files and done by the shell itself: every process costs git some
#: milliseconds, also one that tells the time, which is 0 where the shell does not know it.
_SCRIPT = r"""# Perdure: notes in the spool what git did. Sourced by git hooks.
perdure_note() {
  printf '\n1\t%s\t%s\t%s\t%s\t%s\t%s\n' \
    "${EPOCHSECONDS:-0}" "$hook" "$commit" "$branch" "$tree" "$1" >>"$home/spool/git"
}
perdure_hook() {
[ -d "$home/spool" ] || return 0
if [ -n "$PERDURE_HOOK_PROBE" ]; then
  commit= branch= tree=$PWD
  hook=probe perdure_note "$PERDURE_HOOK_PROBE $hook"
  return 0
fi
pauses=@pauses@
if [ -s "$pauses" ]; then
  until=; while read -r _ line; do until=$line; done <"$pauses"
  if [ "$until" = - ] || [ "$(date +%s)" -lt "$until" ]; then return 0; fi
fi
dir=${GIT_DIR:-.git}
if [ ! -d "$dir" ]; then
  IFS= read -r line <"$dir" || return 0
  dir=${line#gitdir: }
fi
case $hook in
post-commit)
  # A rebase tells of its commits when it is done.
  if [ -d "$dir/rebase-merge" ] || [ -d "$dir/rebase-apply" ]; then return 0; fi ;;
post-checkout)
  # Files were checked out, no branch.
  [ "$3" = 1 ] || return 0 ;;
esac
commit= branch=
IFS= read -r line <"$dir/HEAD"
case $line in
"ref: refs/heads/.invalid")
  branch=$(git symbolic-ref --quiet --short HEAD) ;;
"ref: refs/heads/"*)
  branch=${line#ref: refs/heads/}
  IFS= read -r commit <"$home/../refs/heads/$branch" ;;
"ref: "*)
  branch=${line#ref: } ;;
*)
  commit=$line ;;
esac
[ -n "$commit" ] || commit=$(git rev-parse --verify --quiet HEAD)
tree=$PWD
case $tree in *[[:cntrl:]]*) tree= ;; esac
if [ "$hook" != post-rewrite ]; then
  perdure_note "$*"
  return 0
fi
pairs=
while read -r old new rest; do
  pairs="$pairs $old $new"
  if [ ${#pairs} -gt 2500 ]; then
    perdure_note "$1$pairs"
    pairs=
  fi
done
[ -z "$pairs" ] || perdure_note "$1$pairs"
}
trap '' XFSZ
perdure_hook "$@"
trap - XFSZ
"""


def git_hook_script() -> str:
    """The script, for this user: it looks where `perdure pause` writes."""
    return _SCRIPT.replace("@pauses@", shlex.quote(str(pauses_file())))


BEGIN = "# >>> perdure: notes commits for project memory (`perdure project remove` takes it out)\n"
END = "# <<< perdure\n"
#: A file of ours, without anybody's own script.
SHEBANG = "#!/bin/sh\n"


def block(hook: str, home: str, *, alone: bool = False) -> str:
    """The lines that go into a hook. `home` is the project's folder, from the hook's own place;
    `alone` says that nothing of somebody else's follows.
    """
    script = f'"$home/{SCRIPT_NAME}"'
    run = f'home="${{0%/*}}/{home}" hook={hook}; [ -r {script} ] && . {script}'
    # A process of its own costs git a millisecond; without it, a script that is damaged ends here.
    run = f"trap 'exit 0' EXIT; {{ {run}; }}" if alone else f"{{ ( {run} ); }}"
    probe = f'if [ -n "${PROBE}" ]; then exit 0; fi\n'
    if alone:
        probe = f"trap - EXIT\n{probe}"
    if hook != "post-rewrite":
        return f"{BEGIN}{run} </dev/null >/dev/null 2>&1 || :\n{probe}{END}"
    # It has input, which what follows in the file may want, too.
    return (
        f"{BEGIN}perdure_input=$(cat)\n{run} >/dev/null 2>&1 <<PERDURE_INPUT || :\n"
        f"$perdure_input\nPERDURE_INPUT\n{probe}exec <<PERDURE_INPUT\n"
        f"$perdure_input\nPERDURE_INPUT\n{END}"
    )


def chained(hook: str, home: str, folder: str) -> str:
    """A hook that runs the one of another folder after ours. A relative folder is one of the work
    tree, as for git.
    """
    ours = block(hook, home) if hook in HOOKS else BEGIN + END
    path = shlex.quote(f"{folder}/{hook}")
    return f'{SHEBANG}{ours}if [ -x {path} ]; then exec {path} "$@"; fi\nexit 0\n'


def own(hook: str, home: str) -> str:
    return SHEBANG + block(hook, home, alone=True)


def with_block(script: str, hook: str, home: str) -> str | None:
    """Somebody's script with the block behind its first line; None if it is no shell script."""
    first, newline, rest = script.partition("\n")
    words = first.removeprefix("#!").split()
    shell = words[0].rsplit("/", 1)[-1] if first.startswith("#!") and words else ""
    if shell == "env" and len(words) > 1:
        shell = words[1]
    if not newline or shell not in {"sh", "bash", "dash", "ash", "ksh", "zsh"}:
        return None
    return f"{first}\n{block(hook, home)}{rest}"


def without_block(script: str) -> str:
    """The script as it was before."""
    before, begin, rest = script.partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + after if begin and end else script
