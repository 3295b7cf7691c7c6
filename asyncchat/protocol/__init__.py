"""Bytes into facts and back: pure, usable without the rest of the package.

Not here: `async`, clock, randomness, logging, files, sockets; endpoints, keys, retries.
"""
