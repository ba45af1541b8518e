"""Models: the one way to call them.

What it is called with and answers:

calls      what goes in and what comes out: requests, replies, what arrives of a stream
intake     what its methods are given, checked before anything is sent
gateway    `Gateway`: complete, stream, embed, feedback, costs
stream     an answer as it arrives
chain      from one candidate to the next, under one deadline
trial      one try at one model, and everything that happens around it
flights    the calls under way, so that closing ends them
views      how the models of a configuration stand, for showing it

Who may answer:

providers  who serves models, as data; `builtin` are those that come with Perdure
catalog    candidates, by purpose and complexity
selector   the seam where they are put in order
keys       where keys come from; never shown
local      embeddings on this machine

What is sent, and what comes back:

requests/  request bodies, a module for each wire format
streams/   what answers and streams mean, a module for each wire format; `sse` is their framing
transport  HTTP; `errands` is one call on its way
failures   an answer that is an error; `outages` what goes wrong on the way

When to try, and when not:

retries    how often, after how long, until when
breaker    a model that keeps failing is left alone for a while
limits     so many at a time, and none in vain: rate limits from headers
health     how models did lately at each kind of work

What it took:

books      what all tries share: targets, keys, ledger, recorder
prices     what models cost: a dated list, and yours before it
estimates  how many tokens a call may take, before anybody has counted
budgets    what may be spent; `ledger` reserves and settles it, in `pots`
outcomes   what came of each try; `quality` guesses how good an answer is
cache      answers to requests that were made before, word for word; `answers` replies with them
telemetry  spans and metrics, where OpenTelemetry is set up
traces     what calls leave in a bank, and how it is forgotten
names      names that callers give, as an index can hold them
"""
