"""One answer for a whole room, over websockets with aiohttp: who comes late gets the text so far first.

    pip install asyncchat
    export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=...
    python -m examples.aiohttp_websocket

Everybody who connects to ws://127.0.0.1:8080/rooms/{name}?ask=... reads the same answer; the first one's question counts.
When the last one leaves, the model is stopped.
"""

import os

from aiohttp import web

from asyncchat import APIError, AsyncChat, Broadcast, broadcast

CLIENT: web.AppKey[AsyncChat] = web.AppKey("client", AsyncChat)
ROOMS: web.AppKey[dict[str, Broadcast]] = web.AppKey("rooms", dict)


async def read(request: web.Request) -> web.WebSocketResponse:
    """Send the answer of a room to one more reader."""
    websocket = web.WebSocketResponse(heartbeat=30)
    await websocket.prepare(request)
    rooms, name = request.app[ROOMS], request.match_info["name"]
    if name not in rooms:
        question = request.query.get("ask", "Name three moons.")
        rooms[name] = broadcast(request.app[CLIENT].chat.stream(question), "events")
    room = rooms[name]
    try:
        await room.pipe(websocket)
    except APIError:
        pass  # the reader was told
    finally:
        if not room.readers:
            rooms.pop(name, None)
    return websocket


async def close_client(app: web.Application) -> None:
    """Close the client when the server stops."""
    await app[CLIENT].close()


def make_app() -> web.Application:
    """Return the application."""
    app = web.Application()
    app[ROOMS] = {}
    app[CLIENT] = AsyncChat(model=os.environ.get("MODEL"))  # opens nothing yet
    app.on_cleanup.append(close_client)
    app.router.add_get("/rooms/{name}", read)
    return app


if __name__ == "__main__":
    web.run_app(make_app(), host="127.0.0.1", port=8080)
