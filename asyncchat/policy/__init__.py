"""When and where: frozen configuration and pure decisions over it.

Not here: `await`, reading a clock or a random number (both are parameters), bytes, messages.
"""
