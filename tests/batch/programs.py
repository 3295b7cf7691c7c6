"""A batch in a process of its own, to be killed.

Not here: checks, and imports of more than it takes. `python -m tests.batch.programs URL JOB COUNT ORDER` runs a batch to its end
and prints how many records it gave, how many there were, and why it stopped.
"""

import asyncio
import sys

from asyncchat import AsyncChat


async def run(url: str, job: str, count: int, *, ordered: bool) -> None:
    """Run a batch to its end."""
    done = 0
    async with AsyncChat(url, "key", "m") as client, client.batch(job, concurrency=16) as batch:
        async for record in batch.run((f"p{n}" for n in range(count)), ordered=ordered):
            assert record.text == f"<p{record.n - 1}>", record
            done += 1
        sys.stdout.write(f"{done} {batch.skipped} {batch.stopped}\n")


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), ordered=sys.argv[4] == "ordered"))
