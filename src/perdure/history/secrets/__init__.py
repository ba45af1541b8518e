"""Secrets are masked before anything is written: provider keys, tokens, private keys, passwords.

What counts as a secret comes from two lists of rules. The long one is the default rule set of
gitleaks, the most widely maintained one (MIT licence, see `NOTICE` beside this file). The package
`secretscreen` carries it as data; `tools/secret_rules.py` takes it from there, adapts it to
conversations and writes `published.json`. So a new release is one command and a diff to review. The
short one (`own`) adds what a scanner of repositories leaves out and a conversation is full of: URLs
with passwords, headers, command lines, keys of new providers.

    rules    a rule, and where those of gitleaks are
    own      our own rules
    judge    whether a value that a rule found is a secret, or a placeholder, a hash, a name
    finder   where in a text secrets are
    texts    which texts there are in messages
    masker   what becomes of the secrets in them

The expressions run on RE2, which takes linear time whatever it is given: tool output is written by
others. Three passes over a text, each with the gates of many rules in one automaton, tell which
rules are worth trying; for almost every turn it is none, and that is all that masking costs.

Not guaranteed: that every secret is found. A password that looks like a word, a token of a provider
that nobody has written a rule for, a key cut in half between two messages are kept as they are.
"""

from perdure.history.secrets.masker import Masked, Masker

__all__ = ["Masked", "Masker"]
