"""The bank: everything one installation remembers.

    async with perdure.open("sqlite:///memory.db") as bank:
        session = await bank.session("planner/auth")

`bank` opens, closes and offers it; `wiring` puts its services together; `session` is one
conversation, `session_writer` and `session_reader` do its work; `validation` checks what callers
give; `backup` and `restoring` keep and copy whole banks.
"""

from perdure.bank.bank import Bank, open
from perdure.bank.bank_info import BankInfo, SessionInfo
from perdure.bank.session import Session

__all__ = ["Bank", "BankInfo", "Session", "SessionInfo", "open"]
