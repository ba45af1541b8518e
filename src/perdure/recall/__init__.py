"""Recall: memories, reference layers, the index, search, ranking, filters, judge, ticklers.

Follow one question: `steps.pipeline` runs the steps under one deadline; `scoping.scope` says what
may be seen, `searching.searcher` asks the index, `searching.ranking` orders what it found by the
`features` of each passage; `steps.swarm` and `steps.judge` have a model look at it, or an
algorithm; `injecting` writes what stands beside the prompt. And one turn: `indexing.passages` says
what of it is indexed, `words` cuts it into terms, `indexing.index` writes it in the turn's own
transaction, `indexing.embedding` adds its vector later.
"""
