"""Recall: memories, reference layers, the index, search, ranking, filters, judge, ticklers.

Follow one question: `steps.pipeline` runs the steps under one deadline; `scoping.scope` says what
may be seen, `searching.searcher` asks the index, `searching.ranking` orders what it found by the
`features` of each passage; `steps.swarm` has a model look at it, or an algorithm; `memory_layer`
writes what stands beside the prompt. And one turn: `indexing.passages` says what of it is indexed,
`words` cuts it into terms, `indexing.pending_turns` writes it when nobody else writes,
`indexing.passage_vectors` adds its vector later.
"""
