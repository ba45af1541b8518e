"""Models: the one way to call them.

calls      what goes in and what comes out: requests, replies, what arrives of a stream
providers  who serves models, as data
"""
