"""Models: the one way to call them.

gateway          `Gateway`: complete, stream, embed, feedback, costs
calls            what goes in and what comes out; what callers give is checked here
reply_stream     an answer as it arrives
model_status     how the models of a configuration stand, for showing it

fallback         from one candidate to the next, with retries, under one deadline
attempts         one attempt at one model, and everything that happens around it

providers        who serves models, as data; those that come with Perdure
catalog          candidates, by purpose and complexity
model_selection  in which order they are tried: the selector, and how models did lately
provider_keys    where keys come from; never shown
local            embeddings on this machine

requests/        request bodies, a module for each wire format
streams/         what answers and streams mean, a module for each wire format; `sse`: their framing
transport        the HTTP client; `http_call` is one call on its way
provider_errors  error answers and broken connections, as errors of ours

breaker          a model that keeps failing is left alone for a while
rate_limits      so many calls at a time, and none in vain: rate limits from headers

prices           what models cost: a dated list, and yours before it
budgets          what may be spent; `ledger` reserves and settles it
outcomes         what came of each attempt; `quality` guesses how good an answer is
response_cache   answers to requests that were made before; how all of this is forgotten
telemetry        spans and metrics, where OpenTelemetry is set up
"""
