"""A variable stays one value, whatever it holds."""

from __future__ import annotations

import os
import random

import pytest
from psycopg.conninfo import conninfo_to_dict

from cdc.settings.interpolation import holds_secret, interpolate

HOSTILE = r"x' sslmode=disable \ y"


@pytest.mark.parametrize("template", ["host=${H} dbname=d", "host='${H}' dbname=d", "host = ${H} dbname=d", "dbname=d host=${H}"])
@pytest.mark.parametrize("value", [HOSTILE, "", " ", "'", "\\", "a b", "\n", "${H}", "$${", "é"])
def test_a_variable_adds_no_option_to_the_dsn(template: str, value: str) -> None:
    said = conninfo_to_dict(interpolate(template, {"H": value}, conninfo=True))
    assert {"host": "", **said} == {"host": value, "dbname": "d"}


def test_an_empty_password_swallows_no_option() -> None:
    for template in (
        "host=h password=${PW} sslmode=verify-full",
        "host=h password= ${PW} sslmode=verify-full",
        "host=h password=${PW}${PW} sslmode=verify-full",
        "host=h password='${PW}' sslmode=verify-full",
    ):
        said = conninfo_to_dict(interpolate(template, {"PW": ""}, conninfo=True))
        assert said.get("password", "") == ""
        assert (said["host"], said["sslmode"]) == ("h", "verify-full")


def test_what_stands_around_a_variable_keeps_its_meaning() -> None:
    text = interpolate(r"host=db-${N}.internal password=a\ b\'c${N}d'e\\ dbname='x y${N}'", {"N": "1 '2"}, conninfo=True)
    assert conninfo_to_dict(text) == {"host": "db-1 '2.internal", "password": "a b'c1 '2d'e\\", "dbname": "x y1 '2"}


def test_random_values_come_out_as_they_went_in(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(2000):
        value = "".join(chance.choice("ab '\\=${}\t\n@:/?#%") for _ in range(chance.randrange(8)))
        for template in ("user=u password=${PW} host=h", "user=u password='${PW}' host=h"):
            said = conninfo_to_dict(interpolate(template, {"PW": value}, conninfo=True))
            assert {"password": "", **said} == {"user": "u", "password": value, "host": "h"}
        said = conninfo_to_dict(interpolate("postgresql://u:${PW}@h/d", {"PW": value}, conninfo=True))
        assert {"password": "", **said} == {"user": "u", "password": value, "host": "h", "dbname": "d"}


def test_urls_and_plain_text() -> None:
    url = interpolate("postgresql://u:${H}@h/d", {"H": "a?sslmode=disable#@/"})
    assert conninfo_to_dict(url) == {"user": "u", "password": "a?sslmode=disable#@/", "host": "h", "dbname": "d"}
    assert interpolate("${DSN}", {"DSN": "host=h password=x"}, conninfo=True) == "host=h password=x"
    assert interpolate("$${PW} $5 ${PW}", {"PW": "x"}) == "${PW} $5 x"


@pytest.mark.parametrize(
    ("text", "address", "holds"),
    [
        ("s3cret", False, True),
        ("${A}", False, False),
        ("${A}${B}", False, False),
        ("x${A}", False, True),
        ("$${A}", False, True),
        ("", False, False),
        ("http://no-secret", False, True),
        ("redis://:s3cret@h/0", True, True),
        ("redis://:${PW}@h/0", True, False),
        ("redis://h/0", True, False),
        ("https://u:p%40@h:9200/?x=1", True, True),
        ("postgresql://u@h/d?user=a&PASSWORD=x", True, True),
        ("postgresql://u@h/d?password=${PW}", True, False),
        ("postgresql:///d?host=/run&sslpassword=x", True, True),
        ("host=h password='' user=u", True, False),
        ("host=h password='x y'", True, True),
        ("host=h password=${PW}", True, False),
        ("host=h passfile=/etc/pgpass", True, False),
        ("${DSN}", True, False),
    ],
)
def test_where_a_secret_stands(text: str, address: bool, holds: bool) -> None:
    assert holds_secret(text, address=address) is holds


def test_a_missing_variable_is_named() -> None:
    for text in ("postgresql://${NO}@h", "host=${NO}", "${NO}"):
        with pytest.raises(KeyError, match="NO"):
            interpolate(text, {key: value for key, value in os.environ.items() if key != "NO"}, conninfo=True)
