"""Websockets of ASGI frameworks; `test_sockets` runs them with a reader who leaves."""

from typing import Any

import pytest
import starlette.websockets

from asyncchat.bridges.asgi_socket import asgi_socket


def websocket(*messages: dict[str, Any]) -> tuple[Any, list[Any]]:
    """A Starlette websocket that is sent these messages, and what it sends."""
    queue, sent = [{"type": "websocket.connect"}, *messages], list[Any]()

    async def receive() -> Any:
        return queue.pop(0)

    async def send(message: Any) -> None:
        if message.get("text") == "gone":
            raise OSError
        sent.append(message)

    return starlette.websockets.WebSocket({"type": "websocket"}, receive, send), sent


async def test_text_and_bytes_are_messages_and_a_disconnect_is_none() -> None:
    ws, sent = websocket(
        {"type": "websocket.receive", "text": "a"},
        {"type": "websocket.receive", "bytes": b"b", "text": None},
        {"type": "websocket.disconnect", "code": 1001},
    )
    await ws.accept()
    made = asgi_socket(ws)
    assert made is not None
    assert [await made.receive() for _ in range(3)] == ["a", b"b", None]
    await made.send("c")
    assert sent[-1] == {"type": "websocket.send", "text": "c"}


async def test_error_of_the_framework_says_that_the_reader_has_left() -> None:
    ws, _ = websocket()
    await ws.accept()
    made = asgi_socket(ws)
    assert made is not None
    with pytest.raises(starlette.websockets.WebSocketDisconnect) as caught:
        await made.send("gone")
    assert isinstance(caught.value, made.gone)


def test_other_objects_are_not_taken_for_it() -> None:
    assert asgi_socket(object()) is None
