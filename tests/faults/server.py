"""The fault server: a process of its own that plays any behaviour, and tells what it saw.

Not here: the behaviours. Loopback only; raw sockets, so that resets, half-closes, stalls, drips and lies are exact.

A client chooses by path, `http://127.0.0.1:<port>/s/<behaviour>/<run>/v1`, or for one request by model,
`fault:<behaviour>`. What is counted and seen is kept for each run: a name that the caller makes up. The control port answers
a line that names a run with its `State`. The process prints its `Ports` and serves until its standard input closes, so
that it cannot outlive who started it.
"""

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.faults.behaviours import BEHAVIOURS, UNREAD
from tests.faults.exchange import Connection, Exchange, Gone, Request, Seen

HOST = "127.0.0.1"
CERTIFICATES = Path(__file__).parent / "certificates"
AUTHORITY = CERTIFICATES / "authority.pem"
"""The private authority that signed `good`, `wrong` and `expired`."""

_ROOT = Path(__file__).parents[2]
_READ_BYTES = 2**18


class Ports(msgspec.Struct):
    """Where the server listens."""

    http: int
    v4_only: int
    """As `http`, which has a namesake on ::1 that never accepts; this one has none."""
    elsewhere: int
    """Another origin: nothing of a caller's should ever arrive here."""
    control: int
    blackhole: int
    """Where nothing is accepted and nothing refused."""
    refused: int
    tls_good: int
    tls_self_signed: int
    tls_wrong_name: int
    tls_expired: int


class State(msgspec.Struct):
    """What the server saw of one run."""

    requests: list[Seen] = []
    elsewhere: list[Seen] = []
    answering: int = 0
    """Exchanges that go on: whose client is still connected."""
    now: float = 0.0


class _Run:
    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.elsewhere: list[Seen] = []
        self.connections: set[Connection] = set()

    def state(self) -> State:
        answering = sum(one.is_open and one.is_answering for one in self.connections)
        return State(self.requests, self.elsewhere, answering, time.monotonic())


# ------------------------------------------------------------------------------------ the requests


async def _read_head(reader: asyncio.StreamReader) -> Request:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ")
    if "://" in target:  # how a proxy is asked
        target = "/" + target.split("://", 1)[1].split("/", 1)[-1]
    pairs = (line.split(":", 1) for line in lines[1:] if ":" in line)
    return Request(method, target, {name.strip().lower(): value.strip() for name, value in pairs})


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", "0")))
    pieces = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(pieces)


class _Model(msgspec.Struct):
    model: str = ""


def _chosen(body: bytes) -> str | None:
    """The behaviour that the model of a request asks for."""
    if b'"fault:' not in body:
        return None
    return msgspec.json.decode(body, type=_Model).model.removeprefix("fault:")


class _Server:
    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        self.elsewhere = 0
        self._open: set[Connection] = set()

    def run(self, name: str) -> _Run:
        return self.runs.setdefault(name, _Run())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        connection = Connection(reader, writer)
        self._open.add(connection)
        try:
            while await self._answer(connection):
                pass
        except (Gone, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(connection)
            connection.is_answering = False
            writer.close()

    async def _answer(self, connection: Connection) -> bool:
        request = await _read_head(connection.reader)
        _, name, run_name, _ = request.target.removeprefix("/").split("/", 3)
        if name not in UNREAD:
            request.body = await _read_body(connection.reader, request.headers)
            name = _chosen(request.body) or name
        run = self.run(run_name)
        run.connections.add(connection)
        run.requests.append(request.seen())
        target = f"http://{HOST}:{self.elsewhere}{request.target}"
        connection.is_answering = True
        keeps = await BEHAVIOURS[name](Exchange(connection, request, len(run.requests), target))
        connection.is_answering = False
        return keeps

    async def end(self) -> None:
        """End every connection, and wait for its behaviour to see it: cancelled ones complain."""
        while self._open:
            for connection in self._open:
                connection.writer.transport.abort()
            await asyncio.sleep(0.01)

    async def serve_elsewhere(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Write down who comes, and give an answer that must not be believed."""
        with contextlib.suppress(Gone, OSError, asyncio.IncompleteReadError):
            request = await _read_head(reader)
            request.body = await _read_body(reader, request.headers)
            run = self.run(request.target.split("/")[3])
            run.elsewhere.append(request.seen())
            await Exchange(Connection(reader, writer), request, 1, "").ok(["EVIL"])
        writer.close()

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tell the state of the run that a line names."""
        name = (await reader.readline()).decode().strip()
        run = self.runs.get(name)
        writer.write(msgspec.json.encode(State() if run is None else run.state()))
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()


# ---------------------------------------------------------------------------------------- sockets


def _full(host: str, port: int = 0) -> list[socket.socket]:
    """A port whose queue is full: the kernel drops whoever else comes, and connecting hangs."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.bind((host, port))
    listening.listen(0)
    made = [listening]
    for _ in range(4):
        filler = socket.socket(listening.family)
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            filler.connect(listening.getsockname()[:2])
        made.append(filler)
    return made


def _tls(name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / f"{name}.pem")
    return context


async def _main() -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = _Server()

        async def listen(serve: object = server.serve, tls: ssl.SSLContext | None = None) -> int:
            assert callable(serve)
            made = await asyncio.start_server(
                serve, HOST, 0, ssl=tls, limit=_READ_BYTES, backlog=4096
            )
            stack.callback(made.close)
            port: int = made.sockets[0].getsockname()[1]
            return port

        server.elsewhere = await listen(server.serve_elsewhere)
        ports = Ports(
            http=await listen(),
            v4_only=await listen(),
            elsewhere=server.elsewhere,
            control=await listen(server.control),
            blackhole=0,
            refused=0,
            tls_good=await listen(tls=_tls("good")),
            tls_self_signed=await listen(tls=_tls("self_signed")),
            tls_wrong_name=await listen(tls=_tls("wrong_name")),
            tls_expired=await listen(tls=_tls("expired")),
        )
        full = _full(HOST)
        silent = socket.socket()  # bound, so that nobody else gets the port, and not listening
        silent.bind((HOST, 0))
        ports.blackhole, ports.refused = (one.getsockname()[1] for one in (full[0], silent))
        with contextlib.suppress(OSError):  # without IPv6 it refuses at once, which is as good
            full += _full("::1", ports.http)
        for one in (*full, silent):
            stack.callback(one.close)
        sys.stdout.write(msgspec.json.encode(ports).decode() + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        await server.end()


@contextlib.contextmanager
def fault_server() -> Iterator[Ports]:
    """Run a fault server in a process of its own.

    Raises:
        AssertionError: at the end, if something went wrong inside it.
    """
    command = [sys.executable, "-m", "tests.faults.server"]
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, cwd=_ROOT
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield msgspec.json.decode(process.stdout.readline(), type=Ports)
            finally:
                process.stdin.close()
                process.wait(10)
        complaints.seek(0)
        said = complaints.read()
        assert not said, f"the fault server complains:\n{said}"


if __name__ == "__main__":
    asyncio.run(_main())
