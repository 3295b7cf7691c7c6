"""From a stream to other systems: websockets, streaming HTTP responses, many readers at once. One other system per file."""
