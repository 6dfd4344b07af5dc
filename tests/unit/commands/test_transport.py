from __future__ import annotations

import pytest

from cdc.commands.transport import check_transport
from cdc.settings import Settings
from sinks import options_model


def warned(dsn: str, **urls: str) -> list[str]:
    stores = {
        name: options_model("redis" if "redi" in url else "opensearch").model_validate(
            {"kind": "redis" if "redi" in url else "opensearch", "url": url}
        )
        for name, url in urls.items()
    }
    settings = Settings.model_validate({"source": {"dsn": dsn}}).model_copy(update={"stores": stores})
    findings = list(check_transport(settings))
    assert all(finding.level == "warn" for finding in findings)
    assert "canary" not in repr(findings)
    return [finding.check for finding in findings]


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgresql://u:canary@db.internal/d", []),
        ("postgresql://u:canary@db.internal/d?sslmode=require", ["source TLS"]),
        ("postgresql://u:canary@db.internal/d?sslmode=verify-ca", []),
        ("postgresql://u:canary@127.0.0.1/d?sslmode=disable", []),
        ("host=/run/postgresql sslmode=disable", []),
        ("postgresql://u:canary:canary@h:x/d", []),
    ],
)
def test_the_source(dsn: str, expected: list[str]) -> None:
    assert warned(dsn) == expected


def test_the_stores() -> None:
    assert warned(
        "host=/run",
        a="redis://:canary@cache.internal:6379/0",
        b="rediss://cache.internal:6379/0",
        c="redis://127.0.0.1:6379/0",
        d="http://u:canary@search.internal:9200",
        e="https://search.internal:9200",
        f="http://localhost:9200",
    ) == ["store a TLS", "store d TLS"]
