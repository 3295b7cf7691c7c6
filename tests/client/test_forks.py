"""What a forked child forgets. That real children work, and leave their parents alone, is shown in `tests/storms`."""

import asyncio
import gc
import os

import pytest

from asyncchat import AsyncChat, Limits, PoolClosed
from asyncchat.client import forks
from asyncchat.testing import ChatServer
from tests.client.conftest import MakeClient, start


class Counting:
    def __init__(self) -> None:
        self.times = 0

    def forget(self) -> None:
        self.times += 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_object_forgets_in_the_child_and_not_in_the_parent() -> None:
    one = Counting()
    forks.forget_in_child(one)
    child = os.fork()
    if not child:
        os._exit(one.times)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert one.times == 0


def test_object_is_not_kept_alive_for_that() -> None:
    one = Counting()
    forks.forget_in_child(one)
    assert one in forks._FORGETFUL
    del one
    gc.collect()
    assert not [left for left in forks._FORGETFUL if isinstance(left, Counting)]


async def test_client_that_has_forgotten_has_nobody_in_flight_and_opens_anew(
    server: ChatServer, make_client: MakeClient
) -> None:
    client: AsyncChat = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    stream = client.chat.stream("a")
    await stream.start()
    waiting = start(client.chat("b"))
    await asyncio.sleep(0)
    kept = len(forks._KEPT)
    pool = client._core.pool
    pool.line.forget()  # as in a child
    pool.sessions[0].forget()
    assert len(forks._KEPT) == kept + 3
    with pytest.raises(PoolClosed, match="forked"):
        await stream.final()
    statistics = client.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.endpoints[0].in_flight) == (
        0,
        0,
        0,
    )
    assert (await client.chat("c")).text == "c"
    assert not server.gone  # nothing was closed
    waiting.cancel()
    kept_response = forks._KEPT[-1][0]
    del forks._KEPT[kept:]
    kept_response.close()
