"""Letting other agents see a session, and no longer."""

from __future__ import annotations

from perdure.recall.scoping.sharing import Sharing
from perdure.session.conversation import Conversation


class Shared(Conversation):
    """The role of a session that others may see."""

    async def share(self, *agents: str) -> None:
        """Let these agents recall the turns of this session; ``*`` is everybody, now and later.

        Those are its own turns. What a fork has from its parent is the parent's to share.

        Raises `InvalidInput` if none is named, or if one of them cannot be an agent, or is this
        session's own.
        """
        await Sharing(self._rooms.store).share(self.record, agents)

    async def unshare(self, *agents: str) -> None:
        """Let these agents not recall its turns any more; ``*`` takes back what everybody may.

        It holds at once, in every process. What they were shown before stays with them.

        Raises `InvalidInput`, having changed nothing, if none is named (see `unshare_all`), or if
        an agent would see it nevertheless because it is shared with everybody.
        """
        await Sharing(self._rooms.store).unshare(self.name, agents)

    async def unshare_all(self) -> None:
        """Let nobody but its own agent recall its turns any more. It holds as `unshare` does."""
        await Sharing(self._rooms.store).unshare_all(self.name)

    async def shared_with(self) -> list[str]:
        """The agents that it is shared with; ``*`` is everybody."""
        return await Sharing(self._rooms.store).shared_with(self.name)
