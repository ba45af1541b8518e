"""Ways in which people rewrite the history of a repository, and where each commit is afterwards.

All begin with the same small repository: ``main`` has m1 to m3, then u1 and u2; ``topic`` left it
at m3 and has t1 to t5. A rewrite is a shell script; what it says of where the commits are now is
known by construction: by subjects, or by names that git resolves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

NAMES = ("m1", "m2", "m3", "u1", "u2", "t1", "t2", "t3", "t4", "t5")
TOPIC = ("t1", "t2", "t3", "t4", "t5")
#: Neither the machine's configuration nor its clock: seconds count up from here, or stand still.
_START = 1_790_000_000
VARIABLES = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "FILTER_BRANCH_SQUELCH_WARNING": "1",
    "GIT_EDITOR": "true",
}
_TOOLS = """
set -e
todo() { GIT_SEQUENCE_EDITOR="$1" git rebase -q -i "$2" </dev/null; }
say() { git commit -q -a -m "$1"; }
"""


class Rewrite(NamedTuple):
    """One way: `script` runs in the repository, on ``topic``. `to` says where commits are: by
    default in a live commit with the same subject; ``=`` where they were; empty: gone.
    """

    script: str
    to: Mapping[str, str] = {}
    #: Runs before the commits are anchored.
    before: str = ""
    #: Commits whose change is on main afterwards, although they live on.
    on_main: tuple[str, ...] = ()


def _all(where: str, names: tuple[str, ...] = TOPIC) -> dict[str, str]:
    return dict.fromkeys(names, where)


REWRITES: dict[str, Rewrite] = {
    "rebase": Rewrite("git rebase -q main"),
    "rebase twice": Rewrite("git rebase -q $m2 && git rebase -q main"),
    "rebase and back": Rewrite("git rebase -q main && git reset -q --hard $t5", _all("=")),
    "rebase onto an older one": Rewrite("git rebase -q --onto $m2 $m3"),
    "rebase with a conflict": Rewrite(
        """git rebase -q clash >/dev/null 2>&1 && exit 1
        sed -i '/^<<<<<<<\\|^=======\\|^>>>>>>>/d' app.py
        sed -i 's/limit = 99/limit = 98/' app.py
        git add app.py; git rebase --continue >/dev/null""",
        before="""git checkout -q -b clash main; sed -i 's/^limit = .*/limit = 50/' app.py
        say "another limit"; git checkout -q topic""",
    ),
    "rebase over renamed files": Rewrite(
        "git rebase -q moved",
        before="""git checkout -q -b moved main; mkdir src; git mv app.py tools.py src/
        say "moved into src"; git checkout -q topic""",
    ),
    "rebase with one that is upstream": Rewrite(
        "git rebase -q main",
        before="git checkout -q main; git cherry-pick $t2 >/dev/null; git checkout -q topic",
    ),
    "rebase with merges": Rewrite(
        "git rebase -q --rebase-merges main",
        before="""git checkout -q -b side $t2; echo 'side = "an island in the sea"' >side.py
        git add side.py; say side; git checkout -q topic; git merge -q --no-ff -m joined side
        git branch -q -D side""",
    ),
    "reorder": Rewrite("""todo "sed -i '1{h;d};2{G}'" $t3"""),
    "squash all": Rewrite("""todo "sed -i '2,\\$s/^pick/squash/'" $m3""", _all("topic")),
    "squash two": Rewrite(
        "todo 'sed -i 2s/^pick/squash/' $t3",
        {"t4": "topic", "t5": "topic"},
    ),
    "squash and rebase": Rewrite(
        "git reset -q --soft $m3 && git commit -q -m 'all of it' && git rebase -q main",
        _all("topic"),
    ),
    "drop one": Rewrite("todo 'sed -i 2d' $t3", {"t5": ""}),
    "fixup": Rewrite(
        """sed -i 's/keys.append(key)/keys.insert(0, key)/' auth.py; git commit -q -a --fixup $t1
        GIT_SEQUENCE_EDITOR=: git rebase -q -i --autosquash $m3""",
    ),
    "split": Rewrite(
        """git reset -q --hard $t1; git reset -q --soft $m3; git reset -q
        git add auth.py; git commit -q -m "only the class"
        git add -A; git commit -q -m "and what is said of it"
        git cherry-pick $t1..$t5 >/dev/null""",
        {"t1": ":/and what is said of it|:/only the class"},
    ),
    "split and rebase": Rewrite(
        """git checkout -q -b new main; git checkout -q $t1 -- auth.py
        git commit -q -m "only the class"; git checkout -q $t1 -- auth.md
        git commit -q -m "and what is said of it"; git cherry-pick $t1..$t5 >/dev/null
        git branch -q -f topic; git checkout -q topic; git branch -q -D new""",
        {"t1": ":/and what is said of it|:/only the class"},
    ),
    "reword": Rewrite(
        """export GIT_EDITOR="sed -i '1s/^/better: /'"
        todo "sed -i s/^pick/reword/" $m3""",
        {name: f":/^better: {name}" for name in TOPIC},
    ),
    "amend": Rewrite(
        "echo 'amended = True  # much later' >>util.py; git commit -q -a --amend -C HEAD"
    ),
    "amend the message": Rewrite("git commit -q --amend -m 'quite another'", {"t5": "topic"}),
    "amend all of it": Rewrite(
        """echo 'amended = True  # much later' >>tools.py
        git commit -q -a --amend -m other --author 'Bob <bob@example.com>' --date 1600000000""",
        {"t5": "topic"},
    ),
    "amend again and again": Rewrite(
        """for each in 1 2 3; do echo "again = $each  # and again" >>tools.py
        git commit -q -a --amend -m "try $each"; done""",
        {"t5": "topic"},
    ),
    "reset the author": Rewrite(
        """GIT_AUTHOR_EMAIL=new@example.com git rebase -q $m3 --force-rebase \
        -x 'git commit -q --amend --reset-author --no-edit' >/dev/null 2>&1""",
    ),
    "every commit formatted": Rewrite(
        """git filter-branch -f --tree-filter "sed -i 's/    /  /;s/limit/LIMIT/' *.py" \
        $m3..topic >/dev/null 2>&1""",
    ),
    "cherry-pick and delete": Rewrite(
        "git checkout -q main; git cherry-pick $m3..topic >/dev/null; git branch -q -D topic",
    ),
    "cherry-pick one": Rewrite(
        "git checkout -q main; git cherry-pick $t1 >/dev/null", _all("="), on_main=("t1",)
    ),
    "mailed patches": Rewrite(
        """git format-patch -q -o ../mail $m3; git checkout -q main
        GIT_COMMITTER_EMAIL=bob@example.com git am -q -3 ../mail/*.patch; git branch -q -D topic""",
    ),
    "merge into main": Rewrite(
        "git checkout -q main; git merge -q --no-ff -m joined topic; git branch -q -d topic",
        _all("="),
        on_main=TOPIC,
    ),
    "merge from main": Rewrite("git merge -q -m joined main", _all("=")),
    "fast-forward": Rewrite(
        """git rebase -q main; git checkout -q main; git merge -q --ff-only topic
        git branch -q -d topic""",
        on_main=TOPIC,
    ),
    "squash-merge": Rewrite(
        """git checkout -q main; git merge -q --squash topic >/dev/null
        git commit -q -m 'the topic (#12)'; git branch -q -D topic""",
        _all("main"),
    ),
    "squash-merge, branch stays": Rewrite(
        """git checkout -q main; git merge -q --squash topic >/dev/null
        git commit -q -m 'the topic (#12)'""",
        _all("="),
        on_main=TOPIC,
    ),
    "squash-merge after a merge from main": Rewrite(
        """git merge -q -m joined main; git checkout -q main
        git merge -q --squash topic >/dev/null; git commit -q -m 'the topic (#12)'
        git branch -q -D topic""",
        _all("main"),
    ),
    "filter-branch: another author": Rewrite(
        """git filter-branch -f --env-filter 'export GIT_AUTHOR_EMAIL=a@b GIT_AUTHOR_NAME=B' \
        -- --branches >/dev/null 2>&1""",
    ),
    "filter-branch: a file is taken out": Rewrite(
        """git filter-branch -f --index-filter 'git rm -q --cached --ignore-unmatch notes.md' \
        -- --branches >/dev/null 2>&1""",
    ),
    "filter-branch: into a folder": Rewrite(
        """git filter-branch -f --tree-filter 'mkdir in; mv *.* in/' -- --branches \
        >/dev/null 2>&1""",
    ),
    "force push from another clone": Rewrite(
        """git push -q ../shared.git topic; git clone -q ../shared.git ../other 2>/dev/null
        cd ../other; git checkout -q topic; git rebase -q origin/main; git push -q -f origin topic
        cd - >/dev/null; git fetch -q shared; git reset -q --hard shared/topic""",
        before="""format=$(git rev-parse --show-object-format)
        git init -q --bare --object-format=$format ../shared.git
        git remote add shared ../shared.git; git push -q shared main topic""",
    ),
    "reset": Rewrite("git reset -q --hard $t3", {"t4": "", "t5": ""}),
    "reset and back": Rewrite("git reset -q --hard $t3; git reset -q --hard $t5", _all("=")),
    "deleted branch": Rewrite("git checkout -q main; git branch -q -D topic", _all("")),
    "renamed branch": Rewrite("git branch -q -m topic feature", _all("=")),
    "revert": Rewrite(
        "git revert --no-edit $t5 >/dev/null; git revert --no-edit $t2 >/dev/null", _all("=")
    ),
    "detached, then rebased": Rewrite(
        "git checkout -q --detach; git branch -q -D topic; git rebase -q main"
    ),
    "in another work tree": Rewrite(
        """git checkout -q main; git worktree add -q ../tree topic; cd ../tree
        git rebase -q main""",
    ),
    "work tree moved": Rewrite(
        """git checkout -q main; git worktree add -q ../tree topic
        git worktree move ../tree ../moved; cd ../moved; git rebase -q main""",
    ),
    "gone after gc": Rewrite(
        """git rebase -q main; git reflog expire --expire=now --all; git gc -q --prune=now""",
    ),
    "squashed and gone after gc": Rewrite(
        """git reset -q --soft $m3; git commit -q -m 'all of it'; git rebase -q main
        git reflog expire --expire=now --all; git gc -q --prune=now""",
        _all("topic"),
    ),
    "a new root": Rewrite(
        """git checkout -q --orphan fresh; git commit -q -m 'first public version'
        git branch -q -D main topic; git branch -q -m main""",
        _all("main", NAMES) | {"u1": "", "u2": ""},
    ),
    "renamed, reworded and rebased": Rewrite(
        """git mv auth.py login.py; git commit -q -m t6; git rebase -q main
        export GIT_EDITOR="sed -i '1s/^/new: /'"; todo "sed -i s/^pick/reword/" main""",
        {name: f":/^new: {name}" for name in TOPIC},
    ),
    "split into two branches": Rewrite(
        """git checkout -q -b one main; git cherry-pick $t2 $t5 >/dev/null
        git checkout -q -b two main; git cherry-pick $t1 $t3 $t4 >/dev/null
        git branch -q -D topic""",
    ),
    "a commit joins a later one": Rewrite(
        """todo "sed -i '2{h;d};4{G;s/\\npick/\\nfixup/}'" $m3""", {"t2": ":/^t4"}
    ),
    "all are called wip": Rewrite(
        """git rebase -q main; git filter-branch -f --msg-filter 'echo wip' main..topic \
        >/dev/null 2>&1""",
        {name: f"topic~{4 - at}" for at, name in enumerate(TOPIC)},
    ),
    "edited in a rebase": Rewrite(
        """todo "sed -i 1s/^pick/edit/" $m3 >/dev/null 2>&1
        sed -i 's/Never lend them./Do not lend them./;s/one door/a door/' auth.md
        sed -i 's/def give(/def hand_out(/' auth.py; git commit -q -a --amend -m 't1: better'
        git rebase --continue >/dev/null 2>&1""",
    ),
    "in a subfolder alone": Rewrite(
        """git filter-branch -f --subdirectory-filter in -- --branches >/dev/null 2>&1""",
        {"u1": ""},
        before="""git filter-branch -f --tree-filter 'mkdir in; mv *.py in/' -- --branches \
        >/dev/null 2>&1""",
    ),
}


_SUBJECTS = {
    "m1": "begin",
    "m2": "a greeting",
    "m3": "tidy the utilities",
    "u1": "a readme",
    "u2": "a colour",
    "t1": "keys of people",
    "t2": "a higher limit",
    "t3": "keys can be revoked",
    "t4": "tests of keys",
    "t5": "words are counted",
}
#: What each changes. Lines look like code: some are everywhere, most are not.
_COMMITS = {
    "m1": """defs() { for n in $(seq $1); do printf "$2" $n $n; done; }
    defs 12 'def step_%s(value):\n    return value + %s\n' >app.py
    (echo 'limit = 10'; defs 5 'colour_%s = "none%.0s"\n') >>app.py
    defs 8 'def tool_%s(hand):\n    return hand * %s\n' >tools.py
    defs 8 'def help_%s(whom):\n    return [whom] * %s\n' >util.py
    printf 'Notes\n\nNothing to see yet.\nCome back later.\n' >notes.md""",
    "m2": """printf 'def greet(name):\n    print("Good morning,", name)\n' >>tools.py
    echo 'See tools.py for the greeting.' >>notes.md""",
    "m3": "sed -i 's/help_3/assist_3/;s/whom] \\* 5/whom, whom] * 5/' util.py",
    "t1": """printf 'class Keys:\n    def __init__(self):\n        self.keys = []\n\n' >auth.py
    printf '    def give(self, person, key):\n        keys = self.of(person)\n' >>auth.py
    printf '        keys.append(key)\n        return key\n\n' >>auth.py
    printf '    def of(self, person):\n        return [k for k in self.keys]\n' >>auth.py
    printf 'Keys\n\nEach person has keys.\nThey open one door each.\n' >auth.md
    printf 'Ask Ada for a new one.\nNever lend them.\n' >>auth.md""",
    "t2": "sed -i 's/^limit = 10/limit = 99/;s/value + 9$/value + limit/' app.py",
    "t3": """sed -i 's/return \\[k for k/return [k.name for k/' auth.py
    printf '\n    def revoke(self, key):\n        self.keys.remove(key)\n' >>auth.py
    printf '        self.log("revoked", key)\n' >>auth.py""",
    "t4": """printf 'from auth import Keys\n\ndef test_keys_are_given():\n' >test_auth.py
    printf '    keys = Keys()\n    assert keys.give("ada", 7) == 7\n' >>test_auth.py
    printf '\ndef test_nobody_has_none():\n    assert Keys().of("bob") == []\n' >>test_auth.py""",
    "t5": """sed -i 's/whom] \\* 7/whom.split()] * 7/' util.py
    sed -i 's/hand \\* 3/len(hand.split()) * 3/' tools.py""",
    "u1": "printf 'Demo\n\nA small thing to try things with.\n' >README.md",
    "u2": """sed -i 's/^colour_2 = .*/colour_2 = "green"/;s/value + 2$/value + 2.0/' app.py""",
}


def build(folder: Path, *, tick: int = 0, sha256: bool = False) -> Path:
    """The repository that all begin with. `tick`: seconds between commits."""
    folder.mkdir(parents=True)
    steps = [f"git init -q -b main {'--object-format=sha256' if sha256 else ''} ."]
    steps.append("rm -rf .git/hooks; git config gc.auto 0; git config advice.detachedHead false")
    for at, (name, change) in enumerate(_COMMITS.items()):
        date = f"{_START + at * tick} +0000"
        where = {"t1": "git checkout -q -b topic\n", "u1": "git checkout -q main\n"}.get(name, "")
        steps.append(f"{where}{change}\ngit add -A")
        dated = f"GIT_AUTHOR_DATE='{date}' GIT_COMMITTER_DATE='{date}'"
        steps.append(f"{dated} git commit -q -m '{name}: {_SUBJECTS[name]}'")
    shell(folder, "\n".join([*steps, "git checkout -q topic"]))
    return folder


def shell(folder: Path, script: str, **variables: str) -> None:
    """Raises `RuntimeError` if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["bash", "-c", f"{_TOOLS}\n{script}"],
        cwd=folder,
        env={**kept, **VARIABLES, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{script}\n{done.stdout}{done.stderr}")


def output(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", *args],
        cwd=folder,
        env={**os.environ, **VARIABLES},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commits_of(folder: Path) -> dict[str, str]:
    """The commits by their names, in the order in which they were made."""
    listed = output(folder, "log", "--branches", "--format=%H %s")
    found = {line[41:43]: line[:40] for line in listed.splitlines() if line[40] == " "}
    found |= {line[65:67]: line[:64] for line in listed.splitlines() if line[64:65] == " "}
    return {name: found[name] for name in NAMES}


def prepare(template: Path, folder: Path, rewrite: Rewrite) -> dict[str, str]:
    """A copy of the repository as it is before the rewrite, and its commits by their names."""
    shutil.copytree(template, folder, symlinks=True)
    commits = commits_of(folder)
    if rewrite.before:
        shell(folder, rewrite.before, **commits)
        commits = commits_of(folder) if "filter" in rewrite.before else commits
    return commits


def expected(folder: Path, rewrite: Rewrite, commits: Mapping[str, str]) -> dict[str, set[str]]:
    """Where each commit may be said to be now, by its old id."""
    listed = output(folder, "log", "--branches", "--remotes", "HEAD", "--format=%H %s")
    live = [line.split(" ", 1) for line in listed.splitlines()]
    found: dict[str, set[str]] = {}
    for name, commit in commits.items():
        words = rewrite.to.get(name)
        if words == "=":
            found[commit] = {commit}
        elif words == "":
            found[commit] = {""}
        elif words is None:
            same = {each for each, subject in live if subject.startswith(f"{name}: ")}
            found[commit] = {commit} if commit in same else same
        else:
            found[commit] = {output(folder, "rev-parse", each) for each in words.split("|")}
    return found
