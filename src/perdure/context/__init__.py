"""One prompt from system text, history, injection and prompt.

==============  ==================================================================
composer        one walk from a prompt to what is sent, for one session
context         what it returns: a value that three APIs can be told
assembly        the messages of a window, in order, in their tags: a pure function
encoding        the same as the wire formats write them, round by round
unkept          Responses items for a provider that keeps none of them
breakpoints     where a provider's cache is told that a prefix ends
system          the scheme, explained once; the reminder near each prompt
board           transient notes with turns-to-live
injections      what was put in front of a prompt, and what was sent around it
places          where words of turns are kept in this room: for forgetting
echoes          what a caller sends back of it is not written again
tools           the tools by which a model reaches its past, and their executor
references      how a model names what it wants to see
desk            what the tools work on
explaining      why each block stands where it does
==============  ==================================================================
"""
