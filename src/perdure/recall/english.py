"""Words of English that are one word and do not look it: cutting off endings leaves them apart.

A question says “buy” or “color” where a turn says “bought” or “colour”. These are facts of the
language and of no text in particular; forms that are as often another word (saw, felt, ground)
stay as they are.
"""

from __future__ import annotations

import re

#: A verb, and the forms that do not begin like it.
_VERBS = """
    arise arose arisen; awake awoke awoken; beat beaten; become became; begin began begun;
    bend bent; bite bit bitten; bleed bled; blow blew blown; break broke broken; breed bred;
    bring brought; build built; burn burnt; buy bought; catch caught; choose chose chosen;
    cling clung; come came; creep crept; deal dealt; dig dug; draw drew drawn; dream dreamt;
    drink drank drunk; drive drove driven; eat ate eaten; fall fallen; feed fed; fight fought;
    find found; flee fled; fly flew flown; forbid forbade forbidden; forget forgot forgotten;
    forgive forgave forgiven; freeze froze frozen; give gave given; go went gone; grow grew grown;
    hang hung; hear heard; hide hid hidden; hold held; keep kept; kneel knelt; know knew known;
    lay laid; lead led; leap leapt; learn learnt; leave left; lend lent; lie lain; light lit;
    lose lost; make made; mean meant; meet met; mistake mistook mistaken; overcome overcame;
    pay paid; prove proven; rebuild rebuilt; redo redid redone; rewrite rewrote rewritten;
    ride rode ridden; ring rang rung; rise risen; run ran; say said; see seen; seek sought;
    sell sold; send sent; sew sewn; shake shook shaken; shine shone; shoot shot; show shown;
    shrink shrank shrunk; sing sang sung; sink sank sunk; sit sat; sleep slept; slide slid;
    speak spoke spoken; spend spent; spin spun; spring sprang sprung; stand stood;
    steal stole stolen; stick stuck; sting stung; strike struck; strive strove striven;
    swear swore sworn; sweep swept; swim swam swum; swing swung; take took taken; teach taught;
    tear tore torn; tell told; think thought; throw threw thrown; understand understood;
    undo undid undone; wake woke woken; wear wore worn; weave wove woven; weep wept; win won;
    withdraw withdrew withdrawn; write wrote written
"""
_VERB_OF = {
    form: verb for verb, *forms in (line.split() for line in _VERBS.split(";")) for form in forms
}
#: British spellings, as far as they follow a rule: colour, favourite; organise, initialisation.
_our = re.compile(r"(?<=[a-z][^aeou])our(?=(?:s|al|ed|ing|ful|less|abl[ey]|ites?)?$)").sub
_ise = re.compile(
    r"(?<=[a-z](?:al|an|ar|at|em|er|et|ic|il|im|in|it|od|og|ol|on|or))is(?=(?:e(?:d|rs?|s)?|ing|ations?)$)"
).sub
_LEAST = 6


def one_form(word: str) -> str:
    """The verb of an irregular form, the American spelling of a British one; else the word.

    The word is in lower case. Its other endings are left to the stemmer.
    """
    if (verb := _VERB_OF.get(word)) is not None:
        return verb
    if len(word) < _LEAST:
        return word
    if "our" in word:
        return _our("or", word)
    return _ise("iz", word) if "is" in word else word
