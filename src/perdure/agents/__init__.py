"""Agents: durable single writers with a mailbox, a loop, and four tiers of memory.

`interaction` is one message that an agent has dealt with, from its request to its end. The loop
makes one, and the tiers and the learning read it.
"""
