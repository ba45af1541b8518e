"""Renditions: rounds and turns in fewer words.

Without a model: `algorithm` makes S and C of a round and T of a turn, `merged_text` one text of
many neighbours, `run_text` C of several rounds of tool work. `tool_calls` shortens calls and
results. `sentences` splits text into units,
`unit_weights` weighs them, `unit_choice` takes the best, `facts` finds what must not be lost,
`tidy_text` removes noise.

With one: `model_prompts` says what it is asked and checks the answer, `model_renditions` finds the
work and calls it.

`rendition_records` says what is stored, `rendition_packing` how; `rendition_maker` makes texts,
`rendition_store` reads them and makes what is missing; `rendition_service` does so in the
background, `rendition_status` reports.
"""
