"""The view with a function that docs/views.md shows, from its page to a store: real Postgres, real capture, and a Redis that follows. At every wait the store shows what
Postgres computes with window functions, which a view's SQL has not.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg
import pytest
from typer.testing import CliRunner

from cdc.client.wait import wait
from cdc.commands.app import app
from cdc.embedded.postgres import Postgres
from cdc.log.home import open_reader
from cdc.settings import functions
from cdc.settings.file import load
from sinks import options_model
from tests.conftest import Cache
from tests.integration.pipeline import kept_up, service

PAGE: Final = (Path(__file__).parents[2] / "docs/views.md").read_text(encoding="utf-8")
SECTION: Final = PAGE.partition("## Compute rows with Python")[2].partition("\n## ")[0]
EXPECTED: Final = """
with gaps as (
  select person_id, id, at, at - lag(at) over (partition by person_id order by at, id) as waited from clicks where person_id is not null
), visits as (
  select person_id, at, count(*) filter (where waited is null or waited > '30 min') over (partition by person_id order by at, id) as visit from gaps
)
select person_id, visit, min(at) as began, max(at) as ended, count(*) as clicks from visits group by person_id, visit
"""


def transaction(source: psycopg.Connection, dice: Random) -> None:
    with source.transaction():
        if dice.random() < 0.1:
            source.execute("truncate clicks")
        for _ in range(dice.randrange(1, 8)):
            statement = dice.choice(
                (
                    "insert into clicks values (%(id)s, %(person)s, %(at)s) on conflict (id) do update set person_id = %(person)s",
                    "update clicks set at = %(at)s where id = %(id)s",
                    "delete from clicks where id = %(id)s",
                )
            )
            at = f"2026-11-29 {dice.randrange(4):02}:{dice.randrange(60):02}:00.000001+00"
            source.execute(statement, {"id": dice.randrange(60), "person": dice.choice((None, 1, 2, 3, 4)), "at": at})


def test_the_page_s_example_shows_what_postgres_computes(
    postgres_server: Postgres, valkey: Cache, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    [said], [code] = (re.findall(rf"```{kind}\n(.*?)```", SECTION, re.DOTALL) for kind in ("toml", "python"))
    module = tmp_path / code.partition("\n")[0].removeprefix("# ")
    module.parent.mkdir()
    module.write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(functions, "known", {})
    config = tmp_path / "cdc.toml"
    config.touch(0o600)
    config.write_text(
        f'run_dir = "run"\n[source]\ndsn = "{postgres_server.dsn()}"\n[log]\ndir = "log"\n{said}\n'
        f'[stores.cache]\nkind = "redis"\nurl = "{valkey.url}"\nviews = ["visits"]\n'
    )
    settings, dice = load(config, options_model), Random(seed)
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as source:
        source.execute(
            "create table clicks (id bigint primary key, person_id bigint, at timestamptz not null);"
            "insert into clicks select g, g % 5, timestamptz '2026-11-29 00:00+00' + interval '3 min' * (g * 37 % 60) from generate_series(1, 60) g"
        )

        def equal() -> None:
            with closing(open_reader(settings.log.dir)) as log:
                wait(settings, log, "cache", timeout_s=240)
            expected = [
                row for (row,) in source.execute(f"set timezone = 'UTC'; select to_jsonb(v) from ({EXPECTED}) v").set_result(-1)
            ]
            with valkey.client() as client:
                shown: list[dict[str, Any]] = [json.loads(client.get(key)) for key in client.scan_iter("views.visits:*", 1000)]  # type: ignore[arg-type]
            assert _sorted(shown) == _sorted(expected)

        with service(settings), kept_up(settings):
            equal()
            for _ in range(5):
                for _ in range(dice.randrange(1, 12)):
                    transaction(source, dice)
                equal()
    shown = CliRunner().invoke(app, ["--config", str(config), "views", "explain", "visits"])
    assert (
        "its rows are those that shop.clicks:visits returns (visit int, began timestamptz, ended timestamptz, clicks bigint), "
        in shown.stdout
    )
    assert "for each person_id of:\n    select id, person_id, at from public.clicks" in shown.stdout
    explained = json.loads(CliRunner().invoke(app, ["--config", str(config), "views", "explain", "visits", "--json"]).stdout)
    assert explained["function"]["by"] == ["person_id"]
    sys.modules.pop("shop.clicks")
    sys.modules.pop("shop")


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    plain = [row | {one: row[one].removesuffix("Z").removesuffix("+00:00") for one in ("began", "ended")} for row in rows]
    return sorted(plain, key=lambda row: (row["person_id"], row["visit"]))
