"""How fast and how small Perdure is, against the bare database and against its peers.

    python -m benchmarks append            # one, in words
    python -m benchmarks append --json     # its figures as one JSON object on the last line
    python -m benchmarks append --save     # its figures into benchmarks/RESULTS.md
    python -m benchmarks import --data ~/.claude/projects    # with your own transcripts
    python -m benchmarks gateway --calls 10000    # fewer calls, for a first look at its memory
    python -m benchmarks all               # all of them, written to benchmarks/RESULTS.md

The method is the same everywhere. Contestants take turns within one run, each doing a block of
the same work per round, in another order each round, so that whatever else the machine does hits
all of them alike. A ratio is the quotient of their *total* times; its spread is that of the
rounds. Nothing that prepares or tidies is on the clock, but everything a caller waits for is.

`targets` says what is promised, `harness` keeps time, `texts` and `conversations` make what is
said, `transcripts` finds what was; `ours`, `raw` and `peers` are the contestants, who meet in the
`arena` with records and on the `stage` with turns. `turns_said` has the turns of transcripts in
memory, `long_project` a bank with 50 million tokens, and `cold` is a process that opens it.
`model_server` answers the `gateway`, and `endurance` calls it for long. Every other module is one
benchmark.
"""
