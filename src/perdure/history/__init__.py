"""The turn log and what hangs beside it.

`records` says what is stored, `chain` how it is hashed, `packing` what an append comes to; `log`
writes it, `reading` reads it back, `lines` knows forks. `answers` and `drafts` stream, `intake`
masks (`secrets`) and moves out what is large. `meter` has tokens counted when nobody writes
(`counting`; `calibrations` compares them with providers'). `verify` proves, `forgetting` forgets
(`rerooting` gives forks first what they share). `pruning` shortens tool results for readers
(`excerpt` is what is left of them, `commands` tells what a shell ran); `export` and `markdown`
write files, `gist` says a thing in one line, `leaks` hides tags of models where people look.
"""
