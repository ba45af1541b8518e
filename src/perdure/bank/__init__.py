"""The bank: everything one installation remembers. `perdure.open` opens it."""

from perdure.bank.bank import Bank, open
from perdure.bank.bank_info import BankInfo

__all__ = ["Bank", "BankInfo", "open"]
