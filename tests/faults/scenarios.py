"""The fault matrix: what a server does, what a caller does, what must come out. One row is one test.

Not here: how either does it (`behaviours`, `callers`), how it is checked (`play`). Letters are groups: A legal streams,
B truncated and malformed answers, C time, D retries, E lifecycle, F security.
"""

from dataclasses import dataclass, field
from typing import Any

from asyncchat import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    Limits,
    NotFoundError,
    PermissionDeniedError,
    PoolClosed,
    ProtocolError,
    RateLimitError,
    RetryPolicy,
    StreamCut,
    StreamStalled,
    Timeout,
    UnprocessableEntityError,
)
from asyncchat.errors import LimitExceeded
from tests.faults import callers, scripts
from tests.faults.exchange import MIB, ODD_TEXT, SECRET_MARK, TEXT, TOKENS
from tests.faults.run import Way

FIRST = "".join(TOKENS[:3])
"""What comes before a stream breaks."""

_BOTH: tuple[Way, ...] = ("events", "chunks")
_EVENTS: tuple[Way, ...] = ("events",)
_CHUNKS: tuple[Way, ...] = ("chunks",)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One row.

    Server: `behaviour`, by name, on one of its ports; `host` and `names` where a name leads there: a name has the
    addresses that stand there, or a resolver that hangs (None).
    Caller: what it `does`, with which `options` of `AsyncChat`, reading streams in which `ways`. A `script` is a whole
    program instead; `alone` gives the row a process of its own.
    Outcome: no error and the `text`, or one of `raises` exactly, after `partial`, and what it `says`, its `phase`, its
    `retry_after`; how many `requests`, with how many seconds between two (`gap`); all in less than `seconds`, with less than `memory` bytes more
    than before and no more than `lag` seconds between two turns of the loop.
    """

    name: str
    behaviour: str
    port: str = "http"
    host: str = "127.0.0.1"
    names: dict[str, list[str] | None] = field(default_factory=dict)
    does: callers.Caller = callers.read
    script: scripts.Script | None = None
    alone: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    trusts_authority: bool = False
    ways: tuple[Way, ...] = _EVENTS
    text: str | None = None
    raises: tuple[type[Exception], ...] = ()
    partial: str = ""
    says: str = ""
    phase: str | None = None
    retry_after: float | None = None
    requests: int | None = None
    gap: tuple[float, float] | None = None
    seconds: float = 8.0
    memory: int | None = None
    lag: float | None = None
    slow: bool = False

    @property
    def number(self) -> str:
        return self.name.partition("-")[0]

    @property
    def is_alone(self) -> bool:
        """Whether a process of its own plays it: measuring needs one."""
        return bool(self.alone or self.script or self.memory or self.lag)


def _bounds(seconds: float, total: float | None = None) -> Timeout:
    return Timeout(connect=5, first=seconds, idle=seconds, total=total)


# -------------------------------------------------------------------------------- A: legal streams


def _legal(name: str, behaviour: str, text: str | None = TEXT, **more: Any) -> Scenario:
    return Scenario(name=name, behaviour=behaviour, text=text, **{"ways": _BOTH, **more})


_DUAL: dict[str, Any] = {
    "host": "dual.test",
    "names": {"dual.test": ["::1", "127.0.0.1"]},
    "options": {"timeout": _bounds(5), "max_retries": 0},
    "ways": _EVENTS,
}

CONFORMANCE = [
    _legal("A01-plain-chunked-stream", "ok_stream"),
    _legal("A02-one-byte-per-http-chunk", "ok_trickle"),
    _legal("A03-utf8-cut-between-segments", "ok_split_utf8", ODD_TEXT, ways=_EVENTS),
    _legal("A04-u2028-in-content-ends-no-line", "ok_u2028", ODD_TEXT),
    _legal("A05-crlf", "ok_crlf"),
    _legal("A06-crlf-cut-between-segments", "ok_crlf_split", ways=_EVENTS),
    _legal("A07-lone-cr", "ok_cr_only"),
    _legal("A08-byte-order-mark", "ok_bom"),
    _legal("A09-comments-and-pings", "ok_comments"),
    _legal("A10-one-event-on-two-data-lines", "ok_multiline_data"),
    _legal("A11-no-space-after-data", "ok_no_space"),
    _legal("A12-retry-id-event-fields", "ok_meta_fields"),
    _legal("A13-end-mark-without-blank-line", "ok_no_final_blank"),
    _legal("A14-last-event-without-blank-line-is-not-dropped", "ok_last_token_no_blank"),
    _legal("A15-body-ends-with-its-connection", "ok_close_delimited"),
    _legal("A16-http-1.0", "ok_http10"),
    _legal("A17-100-and-103-before-the-answer", "ok_1xx"),
    _legal("A18-gzip-is-not-held-back", "ok_gzip", does=callers.read_as_it_comes),
    _legal("A19-chunks-without-choices", "ok_usage_chunk"),
    _legal("A20-two-megabytes-in-one-event", "ok_big_event", "x" * (2 * MIB), seconds=2),
    _legal("A21-chunk-extensions-and-trailers", "ok_chunk_extensions"),
    _legal("A22-header-of-12-kB", "ok_big_header"),
    _legal("A23-status-without-reason", "ok_no_reason"),
    _legal("A24-end-mark-ends-a-body-that-does-not", "ok_done_lingers", seconds=1),
    _legal("A25-rubbish-after-the-end-mark", "ok_after_done"),
    _legal(
        "A26-pings-before-the-first-token-are-life",
        "ok_ping_then_tokens",
        options={"timeout": _bounds(0.6), "max_retries": 0},
        ways=_EVENTS,
    ),
    _legal("A27-json-for-a-stream", "json_for_stream"),
    _legal("A28-not-streamed", "ok_json", does=callers.complete, ways=_EVENTS),
    _legal("A29-ipv6-is-a-black-hole", "ok_stream", seconds=2, **_DUAL),
    _legal("A30-ipv6-refuses", "ok_stream", port="v4_only", seconds=1.5, **_DUAL),
    _legal("A31-private-authority", "ok_stream", port="tls_good", trusts_authority=True),
]

# ----------------------------------------------------------------------- B: truncated and malformed


def _broken(name: str, behaviour: str, error: type[Exception], **more: Any) -> Scenario:
    return Scenario(
        name=name,
        behaviour=behaviour,
        raises=(error,),
        **{"ways": _BOTH, "partial": FIRST, "requests": 1, **more},
    )


_ONCE: dict[str, Any] = {"options": {"max_retries": 0}}
_NOTHING: dict[str, Any] = {"partial": "", **_ONCE}
_COMPLETE: dict[str, Any] = {"does": callers.complete, "ways": _EVENTS, **_NOTHING}

TRUNCATION = [
    _broken("B01-fin-inside-a-chunked-body", "trunc_chunked_fin", StreamCut),
    _broken("B02-reset-in-midstream-is-not-replayed", "trunc_chunked_rst", StreamCut),
    _broken("B03-body-ends-cleanly-without-end-mark", "trunc_clean_chunked", StreamCut),
    _broken("B04-connection-ends-without-end-mark", "trunc_close_delimited", StreamCut),
    _broken("B05-body-ends-inside-an-event", "trunc_mid_event", StreamCut),
    _broken("B06-fewer-bytes-than-content-length", "trunc_content_length", StreamCut),
    _legal("B07-finish-reason-without-end-mark-is-whole", "finish_no_done"),
    _legal("B08-the-same-ended-by-its-connection", "finish_no_done_close"),
    _broken("B09-ends-inside-tool-arguments", "trunc_in_tool_args", StreamCut, partial=""),
    _broken("B10-event-that-is-no-json", "bad_json_event", ProtocolError),
    _legal("B11-invalid-utf8-is-replaced", "bad_utf8", FIRST + "a\ufffd\ufffdb"),
    _legal("B12-lone-surrogate-can-be-encoded", "lone_surrogate", FIRST + "\ufffd"),
    _broken("B13-chunk-size-is-no-number", "bad_chunk_size", StreamCut, seconds=2),
    _broken("B14-chunk-size-of-80-bits", "huge_chunk_size", StreamCut, seconds=2),
    _broken("B15-no-http-at-all", "bad_status_line", ProtocolError, **_NOTHING),
    _broken("B16-html-to-a-stream", "html_200", ProtocolError, says="web page", **_NOTHING),
    _broken("B17-empty-body-to-a-stream", "empty_200", ProtocolError, **_NOTHING),
    _broken("B18-nothing-but-the-end-mark", "only_done", ProtocolError, **_NOTHING),
    _broken("B19-error-object-in-the-stream", "error_event", APIError, says="upstream died"),
    _broken("B20-event-named-error", "error_event_named", APIError, says="upstream died"),
    _broken("B21-error-object-of-vllm", "error_event_vllm", APIError, says="EngineCore died"),
    _broken("B22-error-that-is-a-string", "error_event_string", APIError, says="rate limited"),
    _broken(
        "B23-json-error-with-status-200",
        "error_in_200_json",
        APIError,
        says="model crashed",
        **_NOTHING,
    ),
    _broken("B24-finish-reason-error", "finish_reason_error", APIError),
    _broken("B25-json-100000-deep", "deep_json", ProtocolError),
    _legal("B26-integer-of-10000-digits", "big_int_json", FIRST),
    _legal("B27-choices-null", "choices_null", FIRST),
    _broken("B28-choices-is-a-string", "wrong_types", ProtocolError),
    _broken("B29-event-is-an-array", "top_level_array", ProtocolError),
    _broken("B30-whole-json-cut-short", "json_trunc", StreamCut, **_COMPLETE),
    _broken("B31-html-to-a-whole-answer", "html_200", ProtocolError, says="web page", **_COMPLETE),
    _broken("B32-empty-whole-answer", "json_empty", ProtocolError, **_COMPLETE),
    _broken("B33-whole-answer-too-short", "json_length_short", APIConnectionError, **_COMPLETE),
    _broken("B34-whole-answer-without-choices", "json_no_choices", ProtocolError, **_COMPLETE),
    _broken("B35-two-lengths-of-one-body", "length_and_chunked", ProtocolError, **_NOTHING),
    _legal("B36-unasked-answer-is-not-read", "unasked_answer", does=callers.twice(0.05)),
    _broken(
        "B37-tls-ends-without-notice",
        "trunc_without_notice",
        StreamCut,
        port="tls_good",
        trusts_authority=True,
    ),
    _legal("B38-unasked-answer-late", "unasked_answer_late", does=callers.twice(0.15)),
    _legal("B39-stream-for-a-whole-answer", "sse_for_json", does=callers.complete, ways=_EVENTS),
    _legal("B40-surrogates-in-two-events", "split_surrogates", FIRST + "🚀"),
]

# ------------------------------------------------------------------------------------------ C: time

_SHORT: dict[str, Any] = {
    "options": {"timeout": _bounds(0.5, 0.8), "max_retries": 0},
    "seconds": 2.5,
}
# Where there is nothing that could come in time, the bound can be short.
_SILENT: dict[str, Any] = {**_SHORT, "options": {"timeout": _bounds(0.2, 0.8), "max_retries": 0}}

_CONNECT: dict[str, Any] = {
    "options": {"timeout": Timeout(connect=0.2, first=5), "max_retries": 0},
    "seconds": 2.5,
    "raises": (APITimeoutError,),
    "phase": "connect",
    "requests": 0,
}

TIME = [
    Scenario(
        name="C01-no-answer",
        behaviour="stall_headers",
        raises=(APITimeoutError,),
        phase="first",
        **_SILENT,
    ),
    Scenario(
        name="C02-silence-in-midstream",
        behaviour="stall_mid",
        raises=(StreamStalled,),
        phase="idle",
        partial=FIRST,
        **_SHORT,
    ),
    Scenario(
        name="C03-header-byte-by-byte-for-ever",
        behaviour="drip_headers",
        raises=(APITimeoutError,),
        phase="first",
        **_SILENT,
    ),
    Scenario(
        name="C04-event-byte-by-byte-for-ever",
        behaviour="drip_body",
        raises=(StreamStalled,),
        phase="total",
        partial=FIRST,
        **_SHORT,
    ),
    Scenario(
        name="C05-pings-for-ever",
        behaviour="ping_forever",
        raises=(APITimeoutError,),
        phase="total",
        **_SHORT,
    ),
    Scenario(
        name="C06-tokens-for-ever",
        behaviour="tokens_forever",
        raises=(StreamStalled,),
        phase="total",
        partial="t0 t1 ",
        **_SHORT,
    ),
    Scenario(
        name="C07-100-continue-for-ever",
        behaviour="continue_forever",
        raises=(APITimeoutError,),
        phase="first",
        **_SILENT,
    ),
    Scenario(
        name="C08-nobody-accepts",
        behaviour="ok_stream",
        port="blackhole",
        **_CONNECT,
    ),
    Scenario(
        name="C09-connection-refused",
        behaviour="ok_stream",
        port="refused",
        raises=(APIConnectionError,),
        says="cannot connect",
        requests=0,
        **{**_SHORT, "seconds": 0.5},
    ),
    Scenario(
        name="C10-name-does-not-resolve",
        behaviour="ok_stream",
        host="nowhere.test",
        names={"nowhere.test": []},
        raises=(APIConnectionError,),
        says="resolve",
        requests=0,
        **{**_SHORT, "seconds": 0.5},
    ),
    Scenario(
        name="C11-resolver-hangs",
        behaviour="ok_stream",
        host="hangs.test",
        names={"hangs.test": None},
        **_CONNECT,
    ),
    Scenario(
        name="C12-server-does-not-read-the-prompt",
        behaviour="no_read_body",
        does=callers.big_prompt,
        raises=(APITimeoutError,),
        phase="first",
        **_SILENT,
    ),
    Scenario(
        name="C13-413-before-the-prompt-is-read",
        behaviour="early_413",
        does=callers.big_prompt,
        raises=(APIStatusError,),
        says="413 from",
        requests=1,
        options={"timeout": _bounds(3), "max_retries": 0},
        seconds=4,
    ),
    Scenario(
        name="C14-keepalive-probes-are-on",
        behaviour="tokens_forever",
        does=callers.look_at_socket,
        ways=_CHUNKS,
    ),
    Scenario(
        name="C15-full-speed-does-not-starve-the-loop",
        behaviour="flood_tokens",
        does=callers.read_within(2),
        lag=0.1,
        seconds=4,
        slow=True,
    ),
    Scenario(
        name="C16-bound-of-the-caller",
        behaviour="stall_headers",
        does=callers.read_within(0.15),
        ways=_BOTH,
        seconds=1.5,
    ),
    Scenario(
        name="C17-total-holds-for-a-reader-that-is-behind",
        behaviour="flood_tokens",
        does=callers.read_behind,
        options={"timeout": _bounds(5, 0.3), "max_retries": 0},
        raises=(StreamStalled,),
        phase="total",
        partial="x x ",
        seconds=4,
    ),
]

# --------------------------------------------------------------------------------------- D: retries

_TWICE: dict[str, Any] = {"options": {"timeout": _bounds(3), "max_retries": 2}}
_SOON: dict[str, Any] = {
    "options": {"timeout": _bounds(3), "retry": RetryPolicy(initial_delay=0.1)}
}
_NO_RETRY: dict[str, Any] = {"requests": 1, "seconds": 0.5, **_TWICE}


def _retried(name: str, behaviour: str, **more: Any) -> Scenario:
    return Scenario(name=name, behaviour=behaviour, text=TEXT, **{"requests": 2, **_TWICE, **more})


def _refused(name: str, behaviour: str, error: type[Exception], **more: Any) -> Scenario:
    return Scenario(name=name, behaviour=behaviour, raises=(error,), **{**_NO_RETRY, **more})


RETRY = [
    _retried(
        "D01-500-is-retried-under-one-idempotency-key",
        "e500_then_ok",
        does=callers.read_with_one_key,
        **_SOON,
    ),
    _retried("D02-502-is-retried", "e502_then_ok", **_SOON),
    _retried("D03-503-is-retried", "e503_then_ok", **_SOON),
    _retried("D04-529-is-retried", "e529_then_ok", **_SOON),
    _retried("D05-408-is-retried", "e408_then_ok", **_SOON),
    _retried("D06-409-is-retried", "e409_then_ok", **_SOON),
    _retried("D07-425-is-retried", "e425_then_ok", **_SOON),
    _retried("D08-429-is-retried", "e429_then_ok", **_SOON),
    _refused("D09-400-is-not", "e400", BadRequestError),
    _refused("D10-401-is-not", "e401", AuthenticationError),
    _refused("D11-403-is-not", "e403", PermissionDeniedError),
    _refused("D12-404-is-not", "e404", NotFoundError),
    _refused("D13-422-is-not", "e422", UnprocessableEntityError),
    _retried("D14-retry-after-in-seconds", "ra_seconds", gap=(1.0, 2.5)),
    _retried("D15-retry-after-ms-wins", "ra_ms", gap=(0.4, 2.0), **_SOON),
    _retried("D16-x-ms-retry-after-ms", "ra_x_ms", gap=(0.4, 2.0), **_SOON),
    _retried("D17-retry-after-as-a-date", "ra_date", gap=(1.0, 2.5)),
    _retried("D18-date-of-a-clock-an-hour-ahead", "ra_date_skewed", gap=(1.0, 2.5)),
    _refused("D19-two-hours-are-not-waited-for", "ra_hours", RateLimitError, retry_after=7200),
    _refused(
        "D20-wait-beyond-the-deadline",
        "ra_30",
        RateLimitError,
        retry_after=30,
        options={"timeout": _bounds(3, 3), "max_retries": 2},
    ),
    _retried("D21-retry-after-garbage", "ra_garbage", gap=(0.05, 2.0)),
    _retried("D22-retry-after-negative", "ra_negative", gap=(0.05, 2.0)),
    _retried("D23-retry-after-nan", "ra_nan", gap=(0.05, 2.0)),
    _retried("D24-retry-after-infinite", "ra_infinite", gap=(0.05, 2.0)),
    _retried("D25-retry-after-zero-is-no-busy-loop", "ra_zero", gap=(0.05, 2.0)),
    _retried("D26-retry-after-of-400-digits", "ra_huge", gap=(0.05, 2.0)),
    _retried("D27-reset-of-a-spent-limit", "ra_reset", gap=(0.4, 2.0), **_SOON),
    _refused("D28-spent-quota-is-final", "quota", RateLimitError),
    _refused("D29-x-should-retry-false", "should_not_retry", InternalServerError),
    _retried(
        "D30-reset-before-any-answer", "rst_then_ok", does=callers.read_with_one_key, **_SOON
    ),
    _retried("D31-fin-before-any-answer", "close_then_ok", **_SOON),
    _retried(
        "D32-closed-after-the-first-answer",
        "stale_fin",
        does=callers.twice(0.2),
        options={"max_retries": 0},
        seconds=1.5,
    ),
    _retried(
        "D33-kept-connection-reset-by-the-next-request",
        "stale_race",
        does=callers.twice(0.05),
        requests=3,
        gap=(0, 0.25),
    ),
    _retried(
        "D34-the-same-with-fin",
        "stale_race_fin",
        does=callers.twice(0.05),
        requests=3,
        gap=(0, 0.25),
    ),
    _refused(
        "D35-reset-after-tokens-is-not-replayed", "rst_mid_then_ok", StreamCut, partial=FIRST
    ),
    Scenario(
        name="D36-retries-have-a-budget",
        behaviour="e503",
        does=callers.meet_dead_service,
        **_SOON,
    ),
    Scenario(
        name="D37-first-retries-are-spread",
        behaviour="e429_fifty_times",
        does=callers.come_back_apart,
        options={"max_retries": 1},
    ),
    _refused("D38-html-page-in-an-error", "err_html", InternalServerError, **_ONCE),
    _refused(
        "D39-error-body-of-256-MB",
        "err_body_huge",
        InternalServerError,
        memory=48 * MIB,
        **_ONCE,
    ),
    _refused(
        "D40-error-body-that-stalls",
        "err_body_stall",
        InternalServerError,
        options={"timeout": _bounds(0.5), "max_retries": 0},
        seconds=2,
    ),
    _refused("D41-error-body-of-bad-gzip", "err_body_bad_gzip", BadRequestError, **_ONCE),
    _refused("D42-error-body-cut-by-reset", "err_body_rst", BadRequestError, **_ONCE),
    _retried(
        "D43-idle-for-longer-than-a-read-may-be",
        "ok_stream",
        does=callers.twice(0.7),
        options={"timeout": _bounds(0.5), "max_retries": 0},
    ),
]

# -------------------------------------------------------------------------------------- E: lifecycle


def _left(name: str, behaviour: str, does: callers.Caller, **more: Any) -> Scenario:
    """A row whose caller leaves a stream in its own way, with a pool of two places."""
    options = {"timeout": _bounds(3), "max_retries": 0, "limits": Limits(in_flight=2)}
    return Scenario(
        name=name, behaviour=behaviour, does=does, **{"options": options, "ways": _BOTH, **more}
    )


LIFECYCLE = [
    _left("E01-break-and-hold", "tokens_forever", callers.break_and_hold, ways=_CHUNKS),
    _left("E02-break-and-drop", "tokens_forever", callers.break_and_drop, ways=_CHUNKS),
    _left("E03-cancelled-in-midstream", "tokens_forever", callers.cancel_in_midstream),
    _left("E04-cancelled-before-the-headers", "stall_headers", callers.cancel_before_headers),
    _left("E05-cancelled-twice", "tokens_forever", callers.cancel_twice),
    _left("E06-opened-and-dropped", "tokens_forever", callers.open_and_drop, ways=_CHUNKS),
    _left("E07-exception-of-the-caller", "tokens_forever", callers.raise_inside),
    _left("E08-cancelled-in-line", "tokens_forever", callers.cancel_waiters),
    _left(
        "E09-storm-of-cancellations",
        "tokens_forever",
        callers.cancel_storm,
        options={"max_retries": 0, "limits": Limits(in_flight=10)},
    ),
    _left("E10-cancelled-after-n-turns", "tokens_forever", callers.cancel_after_turns),
    _left(
        "E11-closed-while-a-stream-runs",
        "tokens_forever",
        callers.close_while_reading,
        raises=(PoolClosed,),
        partial="t0 t1 ",
    ),
    Scenario(name="E12-two-loops", behaviour="ok_stream", script=scripts.two_loops),
    Scenario(
        name="E13-script-ends-without-closing",
        behaviour="ok_stream",
        script=scripts.ends_without_closing,
    ),
    Scenario(
        name="E14-script-ends-in-midstream",
        behaviour="tokens_forever",
        script=scripts.ends_in_midstream,
    ),
    Scenario(
        name="E15-errors-can-be-pickled",
        behaviour="ok_stream",
        does=callers.pickle_errors,
        options={"max_retries": 0},
    ),
    Scenario(
        name="E16-slow-reader-holds-the-server-back",
        behaviour="fast_big",
        does=callers.read_slowly,
        memory=24 * MIB,
    ),
    Scenario(
        name="E17-no-file-descriptors-left",
        behaviour="ok_64",
        does=callers.run_out_of_files,
        options={"timeout": _bounds(4), "max_retries": 0},
        alone=True,
    ),
    Scenario(
        name="E18-failures-leave-no-socket",
        behaviour="empty_close",
        does=callers.fail_often,
        options={"max_retries": 0},
        raises=(APIConnectionError,),
        requests=100,
    ),
    _left("E19-refusals-leave-no-place", "ok_stream", callers.be_refused_often),
    Scenario(
        name="E20-clients-are-cheap", behaviour="ok_stream", does=callers.make_many, text=TEXT
    ),
    Scenario(
        name="E21-break-in-a-task-group",
        behaviour="tokens_forever",
        script=scripts.breaks_in_task_group,
    ),
]

# --------------------------------------------------------------------------------------- F: security

_QUICK: dict[str, Any] = {"timeout": _bounds(3), "max_retries": 0}
_SECRETS = {"api-key": f"{SECRET_MARK}-header", "x-tenant-token": f"{SECRET_MARK}-token"}


def _redirected(name: str, behaviour: str, **more: Any) -> Scenario:
    options = {**_QUICK, "default_headers": _SECRETS}
    return Scenario(
        name=name,
        behaviour=behaviour,
        options=options,
        raises=(APIStatusError,),
        requests=1,
        **more,
    )


def _misconfigured(name: str, **options: Any) -> Scenario:
    return Scenario(
        name=name,
        behaviour="ok_stream",
        options={"max_retries": 2, **options},
        raises=(ValueError,),
        requests=0,
        seconds=0.5,
    )


def _flood(name: str, behaviour: str, *errors: type[Exception], **more: Any) -> Scenario:
    return Scenario(
        name=name,
        behaviour=behaviour,
        raises=errors or (LimitExceeded,),
        **{
            "options": {"timeout": _bounds(2), "max_retries": 0},
            "memory": 48 * MIB,
            **more,
        },
    )


def _untrusted(name: str, port: str, says: str, **more: Any) -> Scenario:
    return Scenario(
        name=name,
        behaviour="ok_stream",
        port=port,
        raises=(APIConnectionError,),
        says=says,
        requests=0,
        **{"options": _QUICK, **more},
    )


def _printed(name: str, behaviour: str, error: type[Exception]) -> Scenario:
    return Scenario(
        name=name, behaviour=behaviour, does=callers.read_and_print_error, raises=(error,), **_ONCE
    )


SECURITY = [
    _redirected("F01-301-to-another-origin", "redirect_301", says="301 from"),
    _redirected("F02-302-to-another-origin", "redirect_302", says="302 from"),
    _redirected("F03-303-to-another-origin", "redirect_303", says="303 from"),
    _redirected("F04-307-to-another-origin", "redirect_307", says="307 from"),
    _redirected("F05-308-to-another-origin", "redirect_308", says="308 from"),
    _redirected("F06-redirect-loop", "redirect_loop", says="307 from"),
    _redirected("F07-308-within-the-origin", "redirect_same_origin", says="308 from"),
    _redirected(
        "F08-https-to-http",
        "redirect_307",
        port="tls_good",
        trusts_authority=True,
        says="307 from",
    ),
    _misconfigured("F09-line-break-in-the-key", api_key=f"sk-{SECRET_MARK}\r\nx-evil: 1"),
    Scenario(
        name="F10-newline-after-the-key",
        behaviour="ok_stream",
        options={"api_key": f"sk-{SECRET_MARK}\n"},
        text=TEXT,
        seconds=0.5,
    ),
    _misconfigured("F11-line-break-in-a-header", default_headers={"x-a": "1\r\nx-evil: 1"}),
    _misconfigured("F12-key-beyond-ascii", api_key=f"sk-{SECRET_MARK}\u2019"),
    _flood("F13-gzip-bomb", "gzip_bomb"),
    _flood("F14-gzip-bomb-not-streamed", "gzip_bomb_json", does=callers.complete),
    _flood("F15-line-without-end", "flood_line"),
    _flood("F16-event-without-end", "flood_event", slow=True, seconds=30),
    _flood("F17-comments-at-full-speed", "flood_comments", lag=0.2, slow=True, seconds=30),
    _flood("F18-blank-lines-at-full-speed", "flood_blank", lag=0.2, slow=True, seconds=30),
    _flood("F19-json-without-end", "flood_json", does=callers.complete),
    _flood("F20-headers-without-end", "flood_headers", ProtocolError),
    _flood("F21-header-line-without-end", "flood_header_line", ProtocolError),
    _flood(
        "F22-chunk-extension-without-end",
        "flood_chunk_extension",
        StreamStalled,
        ProtocolError,
        StreamCut,
        slow=True,
    ),
    Scenario(
        name="F23-trailers-without-end",
        behaviour="flood_trailers",
        text=TEXT,
        options=_QUICK,
        memory=48 * MIB,
    ),
    _flood(
        "F24-100-continue-at-full-speed",
        "flood_continue",
        APITimeoutError,
        ProtocolError,
        lag=0.2,
        slow=True,
    ),
    Scenario(
        name="F25-no-cookie-comes-back",
        behaviour="set_cookie",
        host="localhost",  # jars keep no cookies of addresses
        names={"localhost": ["127.0.0.1"]},
        does=callers.twice(0.05),
        text=TEXT,
        requests=2,
    ),
    _untrusted("F26-self-signed", "tls_self_signed", "self-signed"),
    _untrusted("F27-wrong-name", "tls_wrong_name", "mismatch", trusts_authority=True),
    _untrusted("F28-expired", "tls_expired", "has expired", trusts_authority=True),
    _untrusted(
        "F29-certificates-are-not-retried",
        "tls_self_signed",
        "self-signed",
        options={"timeout": _bounds(3), "max_retries": 2},
        seconds=0.6,
    ),
    Scenario(
        name="F30-logs-hold-neither-key-nor-prompt",
        behaviour="e401",
        does=callers.read_logged,
        raises=(AuthenticationError,),
        **_ONCE,
    ),
    _printed("F31-errors-hold-neither-key-nor-prompt", "e401", AuthenticationError),
    _printed("F32-echoed-key-is-hidden", "err_echo_key", AuthenticationError),
    _printed("F33-control-characters-of-a-server", "err_ansi", BadRequestError),
    Scenario(
        name="F34-plain-http-to-another-host-warns",
        behaviour="ok_stream",
        host="api.corp.test",
        names={"api.corp.test": ["127.0.0.1"]},
        does=callers.read_in_clear,
        text=TEXT,
        **_ONCE,
    ),
    Scenario(
        name="F35-netrc-replaces-no-key",
        behaviour="ok_stream",
        does=callers.read_beside_netrc,
        text=TEXT,
        requests=1,
    ),
    Scenario(
        name="F36-no-proxy-for-this-machine",
        behaviour="ok_stream",
        does=callers.read_beside_proxy,
        text=TEXT,
        requests=1,
        **_ONCE,
    ),
    Scenario(
        name="F37-repr-holds-no-key",
        behaviour="ok_stream",
        does=callers.print_client,
        text=TEXT,
    ),
]

ALL = {
    scenario.number: scenario
    for group in (CONFORMANCE, TRUNCATION, TIME, RETRY, LIFECYCLE, SECURITY)
    for scenario in group
}
