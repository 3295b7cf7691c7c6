"""`web.server`: the socket, and the end of it all."""

import asyncio
import errno
import socket
from unittest.mock import Mock

import pytest
from aiohttp import ClientError, web

from asyncchat.web.server import PageServer, listen
from tests.client.conftest import start
from tests.web.conftest import Site
from tests.web.test_guard import post

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_listening_is_on_this_machine_alone_unless_asked() -> None:
    with listen() as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


async def test_port_in_use_is_an_error_at_once() -> None:
    with listen() as taken, pytest.raises(OSError, match="in use") as caught:
        listen("127.0.0.1", taken.getsockname()[1])
    assert caught.value.errno == errno.EADDRINUSE


async def test_address_of_version_6_is_in_brackets() -> None:
    listener = Mock(getsockname=lambda: ("::1", 8000, 0, 0))  # not every machine has one to bind
    assert PageServer(web.Application(), listener).url == "http://[::1]:8000/"


async def test_end_does_not_wait_for_answers_on_their_way(site: Site) -> None:
    site.model.say("One two three.").stall(after=3)
    asking = start(post(site))
    await site.model.wait_for_requests(1)
    began = asyncio.get_running_loop().time()
    await site.server.__aexit__(None, None, None)
    assert asyncio.get_running_loop().time() - began < 10  # aiohttp's own patience is 60 s
    await site.model.wait_for_disconnect()
    await site.wait_until_free()
    with pytest.raises(ClientError):
        await asking
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(site.url.rpartition(":")[2].strip("/"))))
