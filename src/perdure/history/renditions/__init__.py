"""What a round or a turn looks like with fewer words.

Without a model: `algorithm` makes S and C of a round and T of a turn, `merging` one text of many
neighbours, `cutting` what is left when nothing else fits. `tools` says what a tool was asked and
what came of it. `sentences` cuts words into units, `weighing` tells what each is worth, `binding`
which of them bind and what must not be torn apart, `choice` takes the best, `facts` finds what must
not be lost; `tidy` and `spelling` (with `misspellings.txt`) remove noise, in no language but their
own (`language`). `measures` tells how much was kept.

With one: `prompts` says what it is asked, `asking` finds what waits for one, `calling` calls it,
`checks` judges what it answers.

`records` says what is stored, `packing` how; `sources` reads what was said, `craft` makes texts of
it, `making` what is missing of some turns, `shelf` reads it back; `scribe` sees to it that nothing
stays missing, `standing` tells how far it is.
"""
