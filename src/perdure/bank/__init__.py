"""The bank: everything one installation remembers, where the rooms are tied together.

    async with perdure.open("sqlite:///memory.db") as bank:
        notes = bank.collection(Note)
        await notes.put(Note(id="ada/1", text="…"))

===========  =====================================================================
bank         `open` and `Bank`: what one does with it
house        what it consists of, tied together; how that is opened and closed
recalling    when recall is made and begins; `recall.services` makes it
sessions     how sessions are made, found and listed
care         what it does for its storage by itself
folders      where it keeps what does not lie in its database
sealing      how large artifacts are encrypted
infos        what is told of it and of its sessions
backup       kept in a folder, as it is at one moment
restoring    brought back, or copied elsewhere; `target` is where to
===========  =====================================================================
"""

from perdure.bank.bank import Bank, open
from perdure.bank.infos import Info, SessionInfo

__all__ = ["Bank", "Info", "SessionInfo", "open"]
