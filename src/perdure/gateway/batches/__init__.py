"""Many requests at once, at half price: the providers' batch modes.

`batches` is what callers use; `batch_records` are the rows that survive the process; `batch_driver`
takes a batch from one state to the next, as a job; `batch_apis` speaks to Anthropic and OpenAI;
`batch_results` writes down what came back; `live_batch` does without a batch mode.
"""

#: The kind of jobs that drive batches: `Batches.drive`.
BATCHES = "batches"
#: Seconds that one run of the driver may take: files are large, and live models are slow.
TIMEOUT = 7_200.0
#: How often a driver that fails unexpectedly, or whose process dies, is begun again.
RETRIES = 50
