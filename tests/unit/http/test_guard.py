"""Who may ask the HTTP port."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from cdc.errors import ConfigError
from cdc.http.guard import Access, access_of, host_and_port, judge
from cdc.settings.models import Http

TOKEN = "0123456789abcdef0123"
LOCAL = access_of(Http())
PUBLIC = access_of(Http(listen="0.0.0.0:8642", token=TOKEN, tls_cert=Path("c"), tls_key=Path("k")))


def refused(access: Access, path: str = "/v1/status", method: str = "GET", **headers: str) -> int | None:
    refusal = judge(access, method, path, {"host": "127.0.0.1:8642", **headers})
    return refusal.status if refusal else None


@pytest.mark.parametrize("host", ["127.0.0.1:8642", "localhost:8642", "LOCALHOST", "[::1]:8642"])
def test_loopback_serves_its_own_names(host: str) -> None:
    assert refused(LOCAL, host=host) is None


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example:8642", "evil.example:80@127.0.0.1", "[::1", "localhost.evil.example"]
)
def test_other_names_are_refused_on_loopback(host: str) -> None:
    """A page elsewhere whose name now points to 127.0.0.1 reads nothing."""
    assert refused(LOCAL, host=host) == 403


def test_a_proxy_can_be_named() -> None:
    access = access_of(Http(hosts=("Cdc.Example",)))
    assert refused(access, host="cdc.example") is None
    assert refused(access, host="other.example") == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8642"])
def test_other_origins_are_refused(origin: str) -> None:
    assert refused(LOCAL, origin=origin) == 403
    assert refused(PUBLIC, origin=origin, authorization=f"Bearer {TOKEN}") == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("path", ["/", "/v1/wait", "/v1/events", "/v1/status", "/metrics", "/page.js"])
def test_requests_that_another_sites_page_sends_are_refused(path: str, site: str) -> None:
    """An image or a frame there carries no Origin: the browser says where it comes from in another header."""
    image = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    frame = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert refused(LOCAL, path=path, **image) == refused(LOCAL, path=path, **frame) == 403
    assert refused(PUBLIC, path=path, authorization=f"Bearer {TOKEN}", **image) == 403
    assert refused(LOCAL, path=path, **link) == (403 if path in ("/v1/wait", "/v1/events") else None)


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_page_and_its_readers_own_requests_are_served(site: str) -> None:
    assert refused(LOCAL, **{"sec-fetch-site": site, "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}) is None


def test_our_own_origin_is_served() -> None:
    assert refused(LOCAL, origin="http://127.0.0.1:8642") is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_reading_only(method: str) -> None:
    assert refused(LOCAL, method=method) == 405
    assert refused(LOCAL, path="/", method=method) == 405


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN.upper()}",
        "Bearer ü",
    ],
)
def test_a_wrong_token_reads_no_facts(authorization: str) -> None:
    for path in ("/v1/status", "/v1/events", "/v1/wait", "/metrics", "/readyz", "/anything"):
        assert refused(PUBLIC, path=path, authorization=authorization) == 401


def test_the_right_token_reads() -> None:
    assert refused(PUBLIC, host="any.example", authorization=f"Bearer {TOKEN}") is None
    assert refused(PUBLIC, authorization=f"bearer  {TOKEN} ") is None


def test_what_holds_no_facts_needs_no_token() -> None:
    assert refused(PUBLIC, path="/") is None
    assert refused(PUBLIC, path="/healthz") is None


def test_a_token_may_also_guard_loopback() -> None:
    access = access_of(Http(token=TOKEN))
    assert refused(access) == 401
    assert refused(access, authorization=f"Bearer {TOKEN}") is None


@pytest.mark.parametrize("listen", ["0.0.0.0:8642", "[::]:8642", "10.0.0.5:80", "db.internal:8642"])
@pytest.mark.parametrize("given", [{}, {"token": TOKEN}, {"tls_cert": Path("c"), "tls_key": Path("k")}])
def test_others_reach_the_port_only_with_token_and_tls(listen: str, given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="not a loopback address") as refusal:
        access_of(Http(listen=listen, **given))  # type: ignore[arg-type]
    assert "in [http]" in (refusal.value.hint or "")


def test_half_of_a_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="need each other"):
        access_of(Http(tls_cert=Path("c")))
    with pytest.raises(ConfigError, match="shorter than 16"):
        access_of(Http(token="short"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "address", ["", "8642", "127.0.0.1", "127.0.0.1:", ":8642", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:-1"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        host_and_port(address)


def test_addresses() -> None:
    assert host_and_port("127.0.0.1:0") == ("127.0.0.1", 0)
    assert host_and_port("[::1]:8642") == ("::1", 8642)


def test_the_page_makes_markup_of_no_text() -> None:
    """Table names, messages and hints come from the database and from stores; the policy of every answer allows no script beside ours."""
    for script in files("cdc.http.page").iterdir():
        if script.name.endswith(".js"):
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script.read_text()
            ), script
