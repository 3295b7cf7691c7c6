"""asyncchat: the asyncio-first client for every server that speaks the OpenAI Chat Completions format.

Names only, loaded when first used (PEP 562): `import asyncchat` imports nothing of a third party but msgspec, and that
too only with the first name that needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from asyncchat._version import __version__

if TYPE_CHECKING:
    from asyncchat.batch.engine import Batch as Batch
    from asyncchat.batch.engine import BatchRun as BatchRun
    from asyncchat.batch.engine import Stop as Stop
    from asyncchat.batch.item import Layout as Layout
    from asyncchat.batch.options import Price as Price
    from asyncchat.batch.record import BatchError as BatchError
    from asyncchat.batch.record import BatchRecord as BatchRecord
    from asyncchat.batch.record import Trace as Trace
    from asyncchat.batch.source import open_source as open_source
    from asyncchat.bridges.broadcast import Broadcast as Broadcast
    from asyncchat.bridges.broadcast import broadcast as broadcast
    from asyncchat.bridges.sse import SSEBody as SSEBody
    from asyncchat.bridges.sse import sse as sse
    from asyncchat.client.client import AsyncChat as AsyncChat
    from asyncchat.client.many import MapEvent as MapEvent
    from asyncchat.client.many import Mapped as Mapped
    from asyncchat.client.many import MapProgress as MapProgress
    from asyncchat.client.many import MapResult as MapResult
    from asyncchat.client.observe import Observer as Observer
    from asyncchat.client.pool import EndpointStatistics as EndpointStatistics
    from asyncchat.client.pool import Statistics as Statistics
    from asyncchat.client.run import RunEvent as RunEvent
    from asyncchat.client.run import ToolFinished as ToolFinished
    from asyncchat.client.run import ToolRecord as ToolRecord
    from asyncchat.client.run import ToolRun as ToolRun
    from asyncchat.client.run import ToolStarted as ToolStarted
    from asyncchat.client.run import TurnFinished as TurnFinished
    from asyncchat.client.stream import ChatStream as ChatStream
    from asyncchat.errors import APIConnectionError as APIConnectionError
    from asyncchat.errors import APIError as APIError
    from asyncchat.errors import APIStatusError as APIStatusError
    from asyncchat.errors import APITimeoutError as APITimeoutError
    from asyncchat.errors import AsyncChatError as AsyncChatError
    from asyncchat.errors import AuthenticationError as AuthenticationError
    from asyncchat.errors import BadRequestError as BadRequestError
    from asyncchat.errors import ConflictError as ConflictError
    from asyncchat.errors import ContentFilterFinishReasonError as ContentFilterFinishReasonError
    from asyncchat.errors import InternalServerError as InternalServerError
    from asyncchat.errors import JournalError as JournalError
    from asyncchat.errors import JournalLocked as JournalLocked
    from asyncchat.errors import JournalMismatch as JournalMismatch
    from asyncchat.errors import LengthFinishReasonError as LengthFinishReasonError
    from asyncchat.errors import LimitExceeded as LimitExceeded
    from asyncchat.errors import LineFull as LineFull
    from asyncchat.errors import MaxTurnsReached as MaxTurnsReached
    from asyncchat.errors import NotFoundError as NotFoundError
    from asyncchat.errors import OutputMismatch as OutputMismatch
    from asyncchat.errors import PermissionDeniedError as PermissionDeniedError
    from asyncchat.errors import PoolClosed as PoolClosed
    from asyncchat.errors import ProtocolError as ProtocolError
    from asyncchat.errors import RateLimit as RateLimit
    from asyncchat.errors import RateLimitError as RateLimitError
    from asyncchat.errors import RefusalError as RefusalError
    from asyncchat.errors import SourceError as SourceError
    from asyncchat.errors import StreamCut as StreamCut
    from asyncchat.errors import StreamStalled as StreamStalled
    from asyncchat.errors import UnprocessableEntityError as UnprocessableEntityError
    from asyncchat.policy.endpoint import Endpoint as Endpoint
    from asyncchat.policy.limits import Limits as Limits
    from asyncchat.policy.retry import Resume as Resume
    from asyncchat.policy.retry import RetryPolicy as RetryPolicy
    from asyncchat.policy.timeout import Timeout as Timeout
    from asyncchat.protocol.answer import AnswerReader as AnswerReader
    from asyncchat.protocol.assembler import Assembler as Assembler
    from asyncchat.protocol.events import ContentDelta as ContentDelta
    from asyncchat.protocol.events import ContentDone as ContentDone
    from asyncchat.protocol.events import Event as Event
    from asyncchat.protocol.events import Finish as Finish
    from asyncchat.protocol.events import LogprobsDelta as LogprobsDelta
    from asyncchat.protocol.events import ReasoningDelta as ReasoningDelta
    from asyncchat.protocol.events import ReasoningDone as ReasoningDone
    from asyncchat.protocol.events import RefusalDelta as RefusalDelta
    from asyncchat.protocol.events import RefusalDone as RefusalDone
    from asyncchat.protocol.events import Resumed as Resumed
    from asyncchat.protocol.events import ToolCallDelta as ToolCallDelta
    from asyncchat.protocol.events import ToolCallDone as ToolCallDone
    from asyncchat.protocol.events import ToolCallStarted as ToolCallStarted
    from asyncchat.protocol.events import UsageReport as UsageReport
    from asyncchat.protocol.facts import AnswerStarted as AnswerStarted
    from asyncchat.protocol.facts import AttemptDropped as AttemptDropped
    from asyncchat.protocol.facts import AttemptFailed as AttemptFailed
    from asyncchat.protocol.facts import AttemptStarted as AttemptStarted
    from asyncchat.protocol.facts import Fact as Fact
    from asyncchat.protocol.facts import RequestFailed as RequestFailed
    from asyncchat.protocol.facts import RequestFinished as RequestFinished
    from asyncchat.protocol.facts import RequestLeft as RequestLeft
    from asyncchat.protocol.facts import RequestStarted as RequestStarted
    from asyncchat.protocol.request import Assistant as Assistant
    from asyncchat.protocol.request import AudioPart as AudioPart
    from asyncchat.protocol.request import Developer as Developer
    from asyncchat.protocol.request import ImagePart as ImagePart
    from asyncchat.protocol.request import System as System
    from asyncchat.protocol.request import TextPart as TextPart
    from asyncchat.protocol.request import ToolResult as ToolResult
    from asyncchat.protocol.request import User as User
    from asyncchat.protocol.response import HTTP as HTTP
    from asyncchat.protocol.response import Choice as Choice
    from asyncchat.protocol.response import Chunk as Chunk
    from asyncchat.protocol.response import Completion as Completion
    from asyncchat.protocol.response import Delta as Delta
    from asyncchat.protocol.response import Function as Function
    from asyncchat.protocol.response import Logprobs as Logprobs
    from asyncchat.protocol.response import Message as Message
    from asyncchat.protocol.response import Timing as Timing
    from asyncchat.protocol.response import ToolCall as ToolCall
    from asyncchat.protocol.response import Usage as Usage
    from asyncchat.protocol.schema import OutputType as OutputType
    from asyncchat.protocol.schema import SchemaError as SchemaError
    from asyncchat.protocol.schema import Tool as Tool
    from asyncchat.protocol.schema import tool as tool
    from asyncchat.protocol.sse import SSEParser as SSEParser

_HOMES = {
    "asyncchat.batch.engine": (
        "Batch",
        "BatchRun",
        "Stop",
    ),
    "asyncchat.batch.item": ("Layout",),
    "asyncchat.batch.options": ("Price",),
    "asyncchat.batch.record": (
        "BatchError",
        "BatchRecord",
        "Trace",
    ),
    "asyncchat.batch.source": ("open_source",),
    "asyncchat.bridges.broadcast": (
        "Broadcast",
        "broadcast",
    ),
    "asyncchat.bridges.sse": (
        "SSEBody",
        "sse",
    ),
    "asyncchat.client.client": ("AsyncChat",),
    "asyncchat.client.many": (
        "MapEvent",
        "MapProgress",
        "MapResult",
        "Mapped",
    ),
    "asyncchat.client.observe": ("Observer",),
    "asyncchat.client.pool": (
        "EndpointStatistics",
        "Statistics",
    ),
    "asyncchat.client.run": (
        "RunEvent",
        "ToolFinished",
        "ToolRecord",
        "ToolRun",
        "ToolStarted",
        "TurnFinished",
    ),
    "asyncchat.client.stream": ("ChatStream",),
    "asyncchat.errors": (
        "APIConnectionError",
        "APIError",
        "APIStatusError",
        "APITimeoutError",
        "AsyncChatError",
        "AuthenticationError",
        "BadRequestError",
        "ConflictError",
        "ContentFilterFinishReasonError",
        "InternalServerError",
        "JournalError",
        "JournalLocked",
        "JournalMismatch",
        "LengthFinishReasonError",
        "LimitExceeded",
        "LineFull",
        "MaxTurnsReached",
        "NotFoundError",
        "OutputMismatch",
        "PermissionDeniedError",
        "PoolClosed",
        "ProtocolError",
        "RateLimit",
        "RateLimitError",
        "RefusalError",
        "SourceError",
        "StreamCut",
        "StreamStalled",
        "UnprocessableEntityError",
    ),
    "asyncchat.policy.endpoint": ("Endpoint",),
    "asyncchat.policy.limits": ("Limits",),
    "asyncchat.policy.retry": (
        "Resume",
        "RetryPolicy",
    ),
    "asyncchat.policy.timeout": ("Timeout",),
    "asyncchat.protocol.answer": ("AnswerReader",),
    "asyncchat.protocol.assembler": ("Assembler",),
    "asyncchat.protocol.events": (
        "ContentDelta",
        "ContentDone",
        "Event",
        "Finish",
        "LogprobsDelta",
        "ReasoningDelta",
        "ReasoningDone",
        "RefusalDelta",
        "RefusalDone",
        "Resumed",
        "ToolCallDelta",
        "ToolCallDone",
        "ToolCallStarted",
        "UsageReport",
    ),
    "asyncchat.protocol.facts": (
        "AnswerStarted",
        "AttemptDropped",
        "AttemptFailed",
        "AttemptStarted",
        "Fact",
        "RequestFailed",
        "RequestFinished",
        "RequestLeft",
        "RequestStarted",
    ),
    "asyncchat.protocol.request": (
        "Assistant",
        "AudioPart",
        "Developer",
        "ImagePart",
        "System",
        "TextPart",
        "ToolResult",
        "User",
    ),
    "asyncchat.protocol.response": (
        "HTTP",
        "Choice",
        "Chunk",
        "Completion",
        "Delta",
        "Function",
        "Logprobs",
        "Message",
        "Timing",
        "ToolCall",
        "Usage",
    ),
    "asyncchat.protocol.schema": (
        "OutputType",
        "SchemaError",
        "Tool",
        "tool",
    ),
    "asyncchat.protocol.sse": ("SSEParser",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]  # noqa: PLE0604  names, of the table above


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
