"""The demo's cdc.toml says what it was made from."""

from __future__ import annotations

import tomllib

from cdc.demo.configuration import toml


def test_what_is_written_is_what_was_given() -> None:
    given = {
        "": {"run_dir": "run"},
        "source": {"dsn": "host='a \\' b' # \"ö\"\n", "tables": ["public.*", '!public."x']},
        'contracts."public.a b"': {"require": ["id"], "on": True, "n": 3, "share": 0.5},
    }
    found = tomllib.loads(toml(given, {"": "first", "source": "where rows come from"}))
    assert found.pop("run_dir") == "run"
    assert found == {"source": given["source"], "contracts": {"public.a b": given['contracts."public.a b"']}}
