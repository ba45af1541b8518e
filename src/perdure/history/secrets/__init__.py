"""Secrets are masked before anything is written: provider keys, tokens, private keys, passwords.

There are two lists of rules. The long one is the default rule set of gitleaks (MIT licence, see
`NOTICE` beside this file). The package `secretscreen` carries it as data; `tools/secret_rules.py`
adapts it to conversations and writes `published.json`: a new release is one command and a diff to
review. The short one (in `masking_rules`) adds what a scanner of repositories leaves out: URLs with
passwords, headers, command lines, keys of new providers.

The expressions run on RE2, in linear time whatever the input: tool output is written by others.
Three passes over a text, each with the gates of many rules in one automaton, tell which rules to
try; for almost every turn it is none, and that is all that masking costs.

Not guaranteed: that every secret is found. A password that looks like a word, a token of a provider
without a rule, a key cut in half between two messages are kept as they are.
"""

from perdure.history.secrets.masker import Masked, Masker

__all__ = ["Masked", "Masker"]
