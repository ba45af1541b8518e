"""Many requests at once, at half price: the providers' batch modes.

`batches` is what callers use; `batch_records` are the rows that survive the process; `batch_driver`
takes a batch from one state to the next, as a job; `batch_apis` speaks to Anthropic and OpenAI.
"""
