"""A page that shows a model's words as they come, with aiohttp.

    pip install asyncchat
    export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=... MODEL=...
    python -m examples.aiohttp_page

Open http://127.0.0.1:8080/. Stop, and closing the tab, free the model at once. Whoever shows this to others puts a login and
limits before it; `asyncchat demo --web` is a larger page of this kind. No model at hand? `asyncchat local --port 8000`.
"""

import os

from aiohttp import web

from asyncchat import AsyncChat, sse

CLIENT: web.AppKey[AsyncChat] = web.AppKey("client", AsyncChat)

PAGE = """<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Ask</title>
<style>
  :root { color-scheme: light dark; font: 1rem/1.6 system-ui, sans-serif; }
  body { max-width: 40rem; margin: 2rem auto; padding: 0 1rem; }
  form { display: flex; gap: .5rem; }
  input { flex: 1; min-width: 0; }
  p { white-space: pre-wrap; overflow-wrap: anywhere; }
</style>
<form>
  <input aria-label="Question" required autofocus>
  <button>Ask</button> <button type="button" id="stop">Stop</button>
</form>
<p aria-live="polite"></p>
<script type="module">
const [form, input, answer] = ["form", "input", "p"].map((name) => document.querySelector(name));
let asking;

form.onsubmit = async (event) => {
  event.preventDefault();
  asking?.abort();
  const { signal } = asking = new AbortController();
  answer.textContent = "";
  try {
    const headers = { "Content-Type": "application/json" };
    const body = JSON.stringify({ prompt: input.value });
    const response = await fetch("/ask", { method: "POST", headers, body, signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", read; !(read = await reader.read()).done;) {
      const events = (rest + read.value).split("\\n\\n");
      rest = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: {")) continue; // a keep-alive, or the end mark
        const part = JSON.parse(event.slice(6));
        if (part.type === "text-delta") answer.append(part.delta);
        if (part.type === "error") answer.append(`\\n${part.errorText}`);
      }
    }
  } catch (error) {
    if (!signal.aborted) answer.append("\\nThe connection broke.");
  }
};
document.querySelector("#stop").onclick = () => asking?.abort();
</script>
"""


async def show(_: web.Request) -> web.Response:
    """Answer with the page."""
    return web.Response(text=PAGE, content_type="text/html")


async def ask(request: web.Request) -> web.StreamResponse:
    """Answer a question with a stream of its words."""
    if request.content_type != "application/json":  # which no other site can send unasked
        raise web.HTTPUnsupportedMediaType
    prompt = str((await request.json())["prompt"])
    async with sse(request.app[CLIENT].chat.stream(prompt, max_tokens=300), "ui") as body:
        response = web.StreamResponse(headers=body.headers)
        await response.prepare(request)
        async for piece in body:
            await response.write(piece)
    return response


def make_app() -> web.Application:
    """Return the application; it has to be run with `handler_cancellation=True`."""
    app = web.Application()
    app[CLIENT] = client = AsyncChat(model=os.environ.get("MODEL"))  # opens nothing yet
    app.on_cleanup.append(lambda _: client.close())
    app.add_routes([web.get("/", show), web.post("/ask", ask)])
    return app


if __name__ == "__main__":
    # Without it aiohttp tells a handler that its reader has gone only when it writes the next word.
    web.run_app(make_app(), host="127.0.0.1", port=8080, handler_cancellation=True)
