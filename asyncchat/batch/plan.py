"""What the workers of one batch have to know, wherever they run: as plain data, without a key in it.

Not here: where they run (`procs`, `bridges.ray`).
"""

import os
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from asyncchat.batch.item import BadItem, Item, Layout
from asyncchat.batch.options import Price, most_in_flight
from asyncchat.batch.table import hash_of
from asyncchat.policy.endpoint import Endpoint
from asyncchat.policy.lease import Leases
from asyncchat.policy.limits import Limits
from asyncchat.policy.timeout import Timeout

if TYPE_CHECKING:
    from asyncchat.batch.engine import Batch
    from asyncchat.client.client import AsyncChat

__all__ = ["EndpointPlan", "Plan", "part_of"]


class EndpointPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An `Endpoint` whose keys are named by the environment variables that hold them.

    Its `rpm`, `tpm` and `in_flight` are of the whole job: each worker gets an equal part of them.
    """

    url: str
    api_key_env: str | list[str] | None = None
    model: str | None = None
    weight: float = 1.0
    rpm: int | None = None
    tpm: int | None = None
    in_flight: int | None = None
    spare: bool = False
    key_header: str = "Authorization"
    query: dict[str, str] | None = None

    def endpoint(self, workers: int, *, with_keys: bool = True) -> Endpoint:
        """Return it with its keys, for one of so many workers.

        Raises:
            ValueError: a variable is not set, or the URL is none.
        """
        names = [self.api_key_env] if isinstance(self.api_key_env, str) else self.api_key_env or []
        return Endpoint(
            self.url,
            api_key=[_key(name) for name in names if with_keys] or None,
            model=self.model,
            weight=self.weight,
            rpm=_part(self.rpm, workers),
            tpm=_part(self.tpm, workers),
            in_flight=_part(self.in_flight, workers),
            spare=self.spare,
            key_header=self.key_header,
            query=self.query,
        )


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch for several workers.

    Args:
        job: its directory, which all of them see.
        base_url: of the server, instead of `endpoints`; None as for `AsyncChat`.
        api_key_env: the environment variable that holds the key of `base_url`, in each worker; None is `OPENAI_API_KEY`.
        model: for requests that name none.
        endpoints: servers that stand in for each other.
        concurrency: requests in flight, of all workers together.
        rpm: requests a minute, of all workers together.
        tpm: tokens a minute, of all workers together.
        batch: the other keywords of `client.batch`, as JSON: `price` and `timeout` as objects.
        layout: how rows become requests.
        source: the file of the inputs, where the workers read it.
        about: what tells this input from another.
        again: how to run it again.
    """

    job: str
    base_url: str | None = None
    api_key_env: str | None = None
    model: str | None = None
    endpoints: list[EndpointPlan] | None = None
    concurrency: int | Literal["auto"] = "auto"
    rpm: int | None = None
    tpm: int | None = None
    batch: dict[str, Any] = {}
    layout: Layout = Layout()
    source: str | None = None
    about: dict[str, Any] = {}
    again: dict[str, Any] = {}

    @property
    def in_flight(self) -> int:
        """How many requests may be in flight, of all workers together."""
        return most_in_flight(self.concurrency)

    def file_for(self, workers: int) -> str:
        """Return the file that so many workers read, each for itself.

        Raises:
            ValueError: it is none, or there are no workers.
        """
        if self.source is None or self.source == "-":
            raise ValueError("several workers read the inputs each for itself: name a file.")
        if workers < 1:
            raise ValueError(f"count={workers!r}: it is a whole number from 1 up.")
        return self.source

    def leases(self, holder: str, took_over: float | None = None) -> Leases:
        """Return who holds the limits."""
        return Leases(
            holder, rpm=self.rpm, tpm=self.tpm, in_flight=self.in_flight, took_over=took_over
        )

    def client(self, workers: int = 1, *, with_keys: bool = True) -> "AsyncChat":
        """Return a client for one of so many workers; without keys it is of use only to describe the job.

        Raises:
            ValueError: it names no server that can be asked, or no key.
        """
        from asyncchat.client.client import AsyncChat

        limits = Limits(in_flight=self.in_flight)
        if self.endpoints:
            endpoints = [one.endpoint(workers, with_keys=with_keys) for one in self.endpoints]
            return AsyncChat(endpoints=endpoints, model=self.model, limits=limits)
        key = None if self.api_key_env is None or not with_keys else _key(self.api_key_env)
        return AsyncChat(base_url=self.base_url, api_key=key, model=self.model, limits=limits)

    def open(self, client: "AsyncChat", shard: str = "") -> "Batch":
        """Return the batch, for one worker's shard.

        Raises:
            ValueError: an option that cannot be right.
        """
        options = dict(self.batch)
        if isinstance(price := options.get("price"), dict):
            options["price"] = Price(**price)
        if isinstance(timeout := options.get("timeout"), dict):
            options["timeout"] = Timeout(**timeout)
        return client.batch(self.job, concurrency=self.concurrency, shard=shard, **options)


def part_of(item: Item | BadItem, parts: int) -> int:
    """Return which of so many parts an input belongs to: all that have one name to the same."""
    return hash_of(item.key) * parts >> 64


def _part(whole: int | None, workers: int) -> int | None:
    return None if whole is None else max(whole // workers, 1)


def _key(name: str) -> str:
    key = os.environ.get(name)
    if not key:
        raise ValueError(f"the environment variable {name}, which is to hold a key, is not set")
    return key
