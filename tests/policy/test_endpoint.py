"""A server as a user describes it: what is wrong is named at once, and a key is shown nowhere."""

import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from asyncchat.policy.credentials import Secret
from asyncchat.policy.endpoint import Endpoint, Key

URL = "https://a.example/v1"


def endpoint(**fields: Any) -> Endpoint:
    return Endpoint(**{"url": URL, **fields})


def revealed(keys: tuple[Key, ...]) -> list[str]:
    return [key.reveal() for key in keys if isinstance(key, Secret)]


# ---------------------------------------------------------------------------------------- what is right


def test_url_is_all_it_takes() -> None:
    plain = Endpoint(URL)
    assert (plain.url, plain.keys, plain.model, plain.weight) == (URL, (), None, 1.0)
    assert (plain.rpm, plain.tpm, plain.in_flight, plain.spare) == (None, None, None, False)
    assert (plain.headers, plain.query, plain.key_header) == ({}, None, "Authorization")


def test_url_is_kept_without_what_we_add_ourselves() -> None:
    assert Endpoint(" https://a.example/v1/chat/completions/ ").url == URL


def test_key_is_one_or_a_list_of_them() -> None:
    assert revealed(endpoint(api_key="sk-1\n").keys) == ["sk-1"]
    assert revealed(endpoint(api_key=["sk-1", "sk-2"]).keys) == ["sk-1", "sk-2"]
    assert revealed(endpoint(api_key=("sk-1", Secret("sk-2"))).keys) == ["sk-1", "sk-2"]


def test_function_that_gives_a_key_is_kept_as_it_is() -> None:
    def key() -> str:
        raise AssertionError("it is asked before a request, not here")

    assert endpoint(api_key=key).keys == (key,)
    assert endpoint(api_key=[key, "sk-2"]).keys[0] is key


@pytest.mark.parametrize("empty", [None, "", " \n", [], [""], ()])
def test_no_key_is_no_key(empty: Any) -> None:
    assert endpoint(api_key=empty).keys == ()


def test_environment_is_not_asked_for_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
    assert Endpoint(URL).keys == ()


def test_azure_is_described_by_a_header_and_a_query() -> None:
    azure = Endpoint(
        "https://name.openai.azure.com/openai/deployments/large",
        api_key="k",
        key_header="api-key",
        query={"api-version": "2024-10-21"},
    )
    assert azure.url == "https://name.openai.azure.com/openai/deployments/large"
    assert azure.key_header == "api-key"
    assert azure.query == {"api-version": "2024-10-21"}


@pytest.mark.parametrize("weight", [1, 0.01, 1e9])
def test_weight_is_any_number_above_nothing(weight: float) -> None:
    assert endpoint(weight=weight).weight == weight


def test_headers_are_the_endpoints_own() -> None:
    given = {"x-a": "1"}
    described = endpoint(headers=given)
    given["x-a"] = "2"
    assert described.headers == {"x-a": "1"}


# ---------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("name", ["rpm", "tpm", "in_flight"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5", float("inf")])
def test_bound_that_makes_no_sense_is_a_value_error_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"Endpoint\({name}="):
        endpoint(**{name: value})


@pytest.mark.parametrize("weight", [0, -1, True, "1", None, float("nan")])
def test_weight_that_makes_no_sense_is_a_value_error_that_names_it(weight: Any) -> None:
    with pytest.raises(ValueError, match="weight"):
        endpoint(weight=weight)


@pytest.mark.parametrize("url", ["", "a.example/v1", "ftp://a/v1", "https://", None, 5])
def test_url_that_is_none_is_a_value_error(url: Any) -> None:
    with pytest.raises(ValueError, match="url"):
        Endpoint(url)


@pytest.mark.parametrize("key", [5, b"sk-1", {"sk-1"}, {"key": "sk-1"}, [None], ["sk-1", 5]])
def test_key_of_another_type_is_a_type_error_that_does_not_show_it(key: Any) -> None:
    with pytest.raises(TypeError, match="api_key is a ") as caught:
        endpoint(api_key=key)
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-a b", "sk-a\r\nx: 1", ["sk-1", "sk-ä"]])
def test_key_that_no_header_can_carry_is_a_value_error_that_does_not_show_it(key: Any) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        endpoint(api_key=key)
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x\r\ny", "Host", "content-length"])
def test_name_of_the_keys_header_that_no_header_can_have_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="header"):
        endpoint(key_header=name)


@pytest.mark.parametrize("name", [None, 5, b"api-key"])
def test_name_of_the_keys_header_is_a_str(name: Any) -> None:
    with pytest.raises(TypeError, match="header"):
        endpoint(key_header=name)


def test_header_that_cannot_be_sent_is_named_and_its_value_is_not() -> None:
    with pytest.raises(ValueError, match="x-secret") as caught:
        endpoint(headers={"x-secret": "hunter2\n"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(TypeError, match="x-secret"):
        endpoint(headers={"x-secret": 5})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 5),
        ("spare", "no"),
        ("query", "api-version=1"),
        ("query", ["api-version"]),
        ("query", {"api-version": 1}),
        ("headers", ["x-a"]),
        ("headers", "x-a: 1"),
    ],
)
def test_field_of_another_type_is_an_error_that_names_it(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=name):
        endpoint(**{name: value})


@pytest.mark.parametrize(
    "url", ["https://a.example/v1?key=1", "https://user:word@a.example/v1", "a.example"]
)
def test_error_speaks_of_the_parameters_that_an_endpoint_has(url: str) -> None:
    with pytest.raises(ValueError, match="url") as caught:
        Endpoint(url)
    assert "base_url" not in str(caught.value)
    assert "default_" not in str(caught.value)


def test_endpoints_can_stand_in_sets() -> None:
    one, other = endpoint(headers={"x-a": "1"}), endpoint(model="other")
    assert len({one, one, other}) == 2


# --------------------------------------------------------------------------------- what is never shown

SECRET = "sk-hunter2"


def secretive() -> Endpoint:
    return endpoint(
        api_key=[SECRET, SECRET],
        model="large",
        headers={"x-key": SECRET},
        query={"key": SECRET},
    )


@pytest.mark.parametrize("show", [repr, str, "{}".format, lambda one: f"{one!r:>5}", ascii])
def test_no_key_is_printed(show: Callable[[object], str]) -> None:
    assert SECRET not in show(secretive())
    assert "large" in show(secretive())


def test_repr_shows_what_was_set_and_how_many_keys_there_are() -> None:
    assert repr(Endpoint(URL, api_key="k")) == f"Endpoint('{URL}')"
    assert repr(Endpoint(URL, ["k", "l"], "large", 2.0, 5, 6, 7, spare=True)) == (
        f"Endpoint('{URL}', model='large', weight=2.0, rpm=5, tpm=6, in_flight=7, spare=True, 2 keys)"
    )


def test_no_key_lies_open_in_its_fields() -> None:
    described = endpoint(api_key=[SECRET])
    with pytest.raises(TypeError):
        vars(described)
    assert SECRET not in repr(msgspec.structs.asdict(described))
    assert SECRET not in repr(msgspec.structs.astuple(described))


@pytest.mark.parametrize(
    "carry", [pickle.dumps, msgspec.json.encode, msgspec.msgpack.encode, msgspec.to_builtins]
)
def test_key_is_not_carried_away(carry: Callable[[object], object]) -> None:
    with pytest.raises(TypeError) as caught:
        carry(endpoint(api_key=SECRET))
    assert SECRET not in str(caught.value)


def test_key_can_be_taken_out_of_a_text() -> None:
    (key,) = endpoint(api_key=SECRET).keys
    assert isinstance(key, Secret)
    assert key.hide(f"{SECRET} is no key; {SECRET}!") == "*** is no key; ***!"


def test_endpoint_without_a_key_pickles() -> None:
    described = endpoint(model="large", rpm=5, headers={"x": "1"})
    assert pickle.loads(pickle.dumps(described)) == described


# ------------------------------------------------------------------------------------------- replacing


def test_field_can_be_replaced() -> None:
    described = secretive()
    replaced = msgspec.structs.replace(described, model="small", rpm=5)
    assert (replaced.model, replaced.rpm, replaced.url) == ("small", 5, URL)
    assert revealed(replaced.keys) == [SECRET, SECRET]
    assert (replaced.headers, replaced.query) == (described.headers, described.query)
    assert described.model == "large"


def test_field_that_replaces_another_is_checked() -> None:
    with pytest.raises(ValueError, match="rpm"):
        msgspec.structs.replace(secretive(), rpm=0)


def test_endpoint_is_not_changed() -> None:
    with pytest.raises(AttributeError):
        Endpoint(URL).model = "large"  # type: ignore[misc]  # that is what is tested
