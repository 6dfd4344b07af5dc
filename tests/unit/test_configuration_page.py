"""docs/configuration.md says what the settings' models say."""

from __future__ import annotations

import pytest

from cdc.settings.models import Http, Source, Strict
from tests.documents import configuration
from tests.documents.writing import written


def test_the_page_is_not_stale() -> None:
    assert configuration.PAGE.read_text(encoding="utf-8") == written(configuration.PAGE, configuration.parts()), "run `make docs`"


def test_a_line_has_the_default_the_limits_and_the_secrets_file() -> None:
    keys = configuration.table(Source)
    assert '| `slot` | `"cdc"` |' in keys
    assert '| `tables` | `["public.*"]` |' in keys
    assert "From 1 to 32. |" in keys
    assert "| `dsn` (or `dsn_file`) | has to be given |" in keys
    assert "| `token` (or `token_file`) |" in configuration.table(Http)


def test_a_key_without_a_meaning_is_refused() -> None:
    class Mute(Strict):
        key: int = 1

    with pytest.raises(LookupError, match=r"Mute\.key"):
        configuration.table(Mute)
