"""What a query asked for, in words: fields and operators, without the values."""

from __future__ import annotations

from perdure.storage.query import All, AnyOf, Compare, Condition, Query, Summary, Tagged


def of_query(query: Query) -> str:
    """Such as ``author = ? and stars >= ? · keys from ada/ · by -created · at most 10``.

    Values may be content and are left out. A prefix is a part of keys, which the trail names.
    """
    parts = [_condition(query.where) or "all"]
    if query.prefix:
        parts.append(f"keys from {query.prefix}")
    if query.order:
        order = (f"{'-' if part.descending else ''}{part.column}" for part in query.order)
        parts.append(f"by {', '.join(order)}")
    if query.limit is not None:
        parts.append(f"at most {query.limit}")
    return " · ".join(parts)


def of_summary(summary: Summary) -> str:
    """The same for figures: ``count, sum stars · per author · all``."""
    figures = ", ".join(f"{kind.value} {column}".strip() for kind, column in summary.figures)
    parts = [figures, f"per {', '.join(summary.group)}" if summary.group else ""]
    return " · ".join(part for part in (*parts, of_query(summary.query)) if part)


def _condition(condition: Condition) -> str:
    match condition:
        case Compare(column=column, op=op):
            return f"{column} {op.value} ?"
        case Tagged(name=name):
            return f"tagged {name}"
        case All(parts=parts):
            return " and ".join(filter(None, map(_condition, parts)))
        case AnyOf(parts=parts):
            return f"({' or '.join(_condition(part) or 'all' for part in parts)})"
