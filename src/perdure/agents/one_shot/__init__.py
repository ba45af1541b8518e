"""One-shot runs: an agent is woken for one run at a time until its tasks are done."""
