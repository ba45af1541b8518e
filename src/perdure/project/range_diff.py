"""git range-diff: the last resort for commits that hardly look alike any more."""

from __future__ import annotations

import re

from perdure.project.git_repository import GitRepository

#: It compares each commit with each.
_MOST = 200
_pair = re.compile(r"\s*\d+:\s+([0-9a-f]{40,64}) [=!] \s*\d+:\s+([0-9a-f]{40,64}) ").match


async def read_range_diff(git: GitRepository, before: str, after: str) -> dict[str, str]:
    """The commits of a branch as it was, and those of the branch now that git takes for the same.
    Empty if there are too many.
    """
    counted = await git.try_run("rev-list", "--left-right", "--count", f"{before}...{after}", "--")
    if counted is None or max(map(int, counted.split())) > _MOST:
        return {}
    printed = await git.try_run(
        *("range-diff", "--no-color", "--no-patch", "--abbrev=64", f"{before}...{after}", "--")
    )
    found = (_pair(line) for line in (printed or "").splitlines())
    return {each[1]: each[2] for each in found if each is not None}
