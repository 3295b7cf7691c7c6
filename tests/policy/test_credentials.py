"""URLs, keys and headers are checked before anything is sent, and errors name what is wrong without showing it."""

import pickle

import pytest

from asyncchat.policy.credentials import (
    Secret,
    checked_base_url,
    checked_headers,
    is_loopback,
)


def test_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("sk-abc")
    assert secret.reveal() == "sk-abc"
    assert "sk-abc" not in repr(secret) + str(secret) + f"{secret}"


def test_secret_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(Secret("sk-abc"))


def test_line_end_around_a_key_is_taken_off() -> None:
    assert Secret(" sk-abc\r\n").reveal() == "sk-abc"


@pytest.mark.parametrize("key", ["sk-a\r\nx-evil: 1", "sk-a b", "sk-ä", "sk-a\0", "sk-“a”"])
def test_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        Secret(key)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        ("http://a/v1", "http://a/v1"),
        ("https://a.example:8443/v1/", "https://a.example:8443/v1"),
        ("http://a/v1/chat/completions", "http://a/v1"),
        ("http://a/v1/chat/completions/", "http://a/v1"),
        (" http://a/v1\n", "http://a/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("http://a", "http://a"),
    ],
)
def test_base_url_is_kept_without_what_we_add_ourselves(given: str, checked: str) -> None:
    assert checked_base_url(given) == checked


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("localhost:8000/v1", "http://"),
        ("a.example/v1", "http://"),
        ("ftp://a/v1", "http://"),
        ("http://", "host"),
        ("http://a:port/v1", "URL"),
        ("http://a/v1?key=1", "default_query"),
        ("http://a/v1#x", "default_query"),
    ],
)
def test_wrong_base_url_is_refused_with_what_to_do(given: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked_base_url(given)


def test_password_in_a_base_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="default_headers") as caught:
        checked_base_url("https://user:hunter2@a/v1")
    assert "hunter2" not in str(caught.value)


def test_key_in_the_query_of_a_base_url_is_not_shown() -> None:
    with pytest.raises(ValueError, match="query") as caught:
        checked_base_url("https://a/v1?api-key=hunter2")
    assert "hunter2" not in str(caught.value)


def test_base_url_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no URL"):
        checked_base_url(3)  # type: ignore[arg-type]


def test_headers_that_can_be_sent_are_kept() -> None:
    headers = {"x-a": "1", "X-B": "é\ttab", "api-key": "k"}
    assert checked_headers(headers) == headers


@pytest.mark.parametrize("value", ["a\r\nx: 1", "a\nb", "a\0b", "a\x01b", "a\x7fb", "漢"])
def test_header_whose_value_cannot_be_sent_is_named_and_its_value_is_not(value: str) -> None:
    with pytest.raises(ValueError, match="x-secret") as caught:
        checked_headers({"x-secret": value})
    assert value not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "nä", "a\r\nb", "a\0"])
def test_header_whose_name_cannot_be_sent_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="header"):
        checked_headers({name: "x"})


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding"])
def test_header_of_the_transport_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="transport"):
        checked_headers({name: "x"})


@pytest.mark.parametrize("headers", [{"x": 1}, {"x": None}, {"x": b"y"}, {1: "x"}])
def test_header_that_is_no_text_is_a_type_error(headers: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="str"):
        checked_headers(headers)


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("0.0.0.0", True),
        ("localhost.example", False),
        ("10.0.0.1", False),
        ("127.evil.example", False),
    ],
)
def test_loopback_is_told_from_other_hosts(host: str, is_ours: bool) -> None:
    assert is_loopback(host) is is_ours
