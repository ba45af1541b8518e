"""The bank: everything one installation remembers. `perdure.open` opens it; `session` is one
conversation.
"""

from perdure.bank.bank import Bank, open
from perdure.bank.bank_info import BankInfo, SessionInfo
from perdure.bank.session import Session

__all__ = ["Bank", "BankInfo", "Session", "SessionInfo", "open"]
