"""A session: one conversation of an agent, turn by turn.

    session = await bank.session("planner/auth")
    await session.append([{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}])
    for turn in await session.turns():
        print(turn.id, turn.prompt)

Each role of it is a module:

============  ====================================================================================
writing       append, close_turn, undo, resume, describe, archive
answering     answer, partials, close_partial, drop_partial
reading       turns, turn, read, tail, resolve
contexts      context, past_context, set_fidelity, board, run_tool, epochs, change_strategy
sharing       share, unshare, unshare_all, shared_with
recalling     recall
session       `Session`: the roles in one object; fork
conversation  what they share: name, agent, state, record, head; the rooms of the bank, the writer
given         what callers give, checked
============  ====================================================================================
"""

from perdure.session.conversation import Rooms
from perdure.session.reading import Said
from perdure.session.session import Session

__all__ = ["Rooms", "Said", "Session"]
