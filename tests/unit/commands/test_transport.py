from __future__ import annotations

from pathlib import Path

import pytest

from cdc.commands.transport import check_transport
from cdc.settings.models import Settings
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
    assert "canary" not in repr(findings)
    return [finding.check for finding in findings if finding.level == "warn"]


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


@pytest.mark.parametrize(
    ("name", "value", "dsn"),
    [
        ("PGHOST", "db.internal", "postgresql://cdc@/shop"),
        ("PGHOSTADDR", "203.0.113.9", "postgresql://cdc@localhost/shop"),
        ("PGSERVICE", "prod", "dbname=shop"),
        ("PGHOST", "", "service=prod"),
    ],
)
def test_the_source_wherever_its_host_is_named(
    name: str, value: str, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "services").write_text("[prod]\nhost=db.internal\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv(name, value)
    findings = list(check_transport(Settings.model_validate({"source": {"dsn": dsn}})))
    assert [(finding.level, finding.check) for finding in findings] == [("ok", "source TLS")]
    assert "verify-full" in findings[0].message
    monkeypatch.setenv("PGSSLMODE", "require")
    assert warned(dsn) == ["source TLS"]


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


def test_a_catalog_s_token_endpoint_as_the_catalog() -> None:
    given = {"uri": "https://lake.internal", "credential": "me:canary", "oauth2_server_uri": "http://login.internal/token"}
    lake = options_model("iceberg").model_validate({"kind": "iceberg", "path": "/w", "catalog": "rest", **given})
    settings = Settings.model_validate({"source": {"dsn": "host=/run"}}).model_copy(update={"stores": {"lake": lake}})
    (finding,) = check_transport(settings)
    assert (finding.message, finding.hint) == (
        "http to login.internal is plain text",
        "use https:// in stores.lake.oauth2_server_uri",
    )
