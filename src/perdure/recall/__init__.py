"""Recall: memories, reference layers, the index, search, ranking, filters, judge, ticklers.

Follow one question: `pipeline` runs the steps under one deadline; `scope` says what may be seen,
`searching` asks the index, `ranking` orders what it found by the `features` of each passage;
`swarm` and `judge` have a model look at it, or an algorithm; `injecting` writes what stands beside
the prompt. And one turn: `passages` says what of it is indexed, `words` cuts it into terms, `index`
writes it in the turn's own transaction, `embedding` adds its vector later.
"""
