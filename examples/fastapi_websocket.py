"""A chat over websockets with FastAPI.

    pip install asyncchat fastapi uvicorn websockets
    export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=...
    uvicorn examples.fastapi_websocket:app

Open http://127.0.0.1:8000/ (or the port you gave uvicorn). No model at hand? `asyncchat local --port 8001` serves one.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, WebSocket
from fastapi.responses import HTMLResponse

from asyncchat import APIError, AsyncChat

PAGE = """<!doctype html><meta charset="utf-8"><title>Chat</title>
<main role="log" aria-live="polite"></main>
<form><input autofocus aria-label="Question"><button>Ask</button><button type="button" id="stop">Stop</button></form>
<script>
const socket = new WebSocket(location.href.replace("http", "ws") + "chat");
const log = document.querySelector("main"), input = document.querySelector("input");
let answer;
socket.onmessage = ({ data }) => {
  const event = JSON.parse(data);
  if (event.type === "content.delta") answer.append(event.delta);
  if (event.type === "error") answer.append(" [" + event.error.message + "]");
};
document.querySelector("form").onsubmit = (event) => {
  event.preventDefault();
  for (const text of [input.value, ""]) log.append(answer = document.createElement("p")), answer.append(text);
  socket.send(JSON.stringify({ type: "ask", text: input.value }));
  input.value = "";
};
document.querySelector("#stop").onclick = () => socket.send('{"type": "abort"}');
</script>
"""

client = AsyncChat(model=os.environ.get("MODEL"))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Close the client when the server stops."""
    async with client:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/")
async def page() -> HTMLResponse:
    """Return the page."""
    return HTMLResponse(PAGE)


@app.websocket("/chat")
async def chat(websocket: WebSocket) -> None:
    """Hold one conversation: a reader says `{"type": "ask", "text": ...}`, and the answer is streamed back as events."""
    await websocket.accept()
    messages: list[object] = []
    async for said in websocket.iter_json():
        if said["type"] != "ask":
            continue  # a stop that has crossed the end of its answer
        messages.append({"role": "user", "content": said["text"]})
        try:
            answer = await client.chat.stream(messages).pipe(websocket, "events")
        except APIError:
            messages.pop()  # the reader was told, and may ask again
            continue
        if answer.ending in ("left", "stalled"):
            break
        messages.append({"role": "assistant", "content": answer.text})
