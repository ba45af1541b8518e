"""The order of tasks: pure functions over a graph of needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

#: For each task the tasks that it needs.
Needs = Mapping[str, Sequence[str]]


def path_between(needs: Needs, start: str, end: str) -> list[str]:
    """A way from `start` to `end` along needs, both included; empty if there is none."""
    came: dict[str, str] = {start: ""}
    queue = [start]
    for each in queue:
        if each == end:
            way = [each]
            while came[way[-1]]:
                way.append(came[way[-1]])
            return way[::-1]
        for further in needs.get(each, ()):
            if further not in came:
                came[further] = each
                queue.append(further)
    return []


def without_cycles(
    needs: Needs, suspects: Iterable[tuple[str, str]]
) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """The graph with those of the suspected links that close no cycle, in their order; and those
    that would. The rest of the graph must have no cycle.
    """
    doubted = list(dict.fromkeys(suspects))
    left = set(doubted)
    graph = {
        task: [each for each in needed if (task, each) not in left]
        for task, needed in needs.items()
    }
    refused = []
    for task, needed in doubted:
        if task == needed or path_between(graph, needed, task):
            refused.append((task, needed))
        else:
            graph.setdefault(task, []).append(needed)
    return graph, refused


def ranks(needs: Needs) -> dict[str, int]:
    """How many tasks, one after the other, come before each: 0 needs none. No cycles."""
    found: dict[str, int] = {}
    for start in needs:
        stack = [start]
        while stack:
            task = stack[-1]
            before = [each for each in needs.get(task, ()) if each in needs]
            open_ones = [each for each in before if each not in found]
            if task not in found and open_ones:
                stack += open_ones
                continue
            found[task] = max((found[each] + 1 for each in before), default=0)
            stack.pop()
    return found
