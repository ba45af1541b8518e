"""The turn log and what hangs beside it.

`records` says what is stored, `chain` how it is hashed, `log` writes and reads turns, `lines` knows
forks, `answers` streams, `intake` masks and moves out what is large, `meter` counts tokens,
`forgetting` forgets, `export` writes files. `pruning` shortens tool results for readers (`excerpt`
is what is left of them, `commands` tells what a shell ran).
"""
