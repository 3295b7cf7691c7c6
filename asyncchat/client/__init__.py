"""The thin shell that awaits the network: session ◀ stream ◀ pool ◀ client."""
