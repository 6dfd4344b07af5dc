"""cdc.toml, whole: every problem is one line that names file and key, and no secret is ever in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr, ValidationError
from structlog.testing import capture_logs

import sinks
from cdc.errors import ConfigError
from cdc.model.display import shown_as
from cdc.settings.file import SettingsError, load
from cdc.settings.models import Source, StoreOptions
from cdc.settings.secretfile import MAX_FILE_BYTES
from cdc.settings.strict import Strict
from sinks.warehouse.options import Options as Warehouse

CANARY = "s3cr3t-canary"
DSN = f"postgresql://cdc:{CANARY}@db.internal/shop"


class Retry(Strict):
    attempts: int = Field(3, ge=1)


class CacheOptions(StoreOptions):
    url: str = "redis://127.0.0.1"
    password: SecretStr | None = None
    folder: Path = Path("var/cache")
    retry: Retry = Retry()


def options_model(kind: str) -> type[StoreOptions]:
    if kind != "redis":
        raise ConfigError(f"there is no store of kind {kind!r}", hint="use one of redis")
    return CacheOptions


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cdc.toml"


@pytest.fixture(autouse=True)
def private() -> Iterator[None]:
    """What the tests write is theirs alone."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def problems(file: Path, text: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(file, options_model)
    lines = [problem.line() for problem in caught.value.problems]
    assert all("\n" not in line and str(file) in line and CANARY not in line for line in lines)
    assert caught.value.exit_code == 2
    return lines


def test_a_whole_file(file: Path) -> None:
    file.write_text(f'''
        [source]
        dsn = "{DSN}"
        tables = ["public.*", "!public.audit_log"]
        [log]
        dir = "here/log"
        [stores.cache]
        kind = "redis"
        tables = ["public.products"]
        password = "{CANARY}"
        retry = {{ attempts = 5 }}
    ''')
    settings = load(file, options_model)
    cache = settings.stores["cache"]
    assert isinstance(cache, CacheOptions)
    assert settings.source.dsn.get_secret_value() == DSN
    assert settings.source.tables == ("public.*", "!public.audit_log")
    assert (cache.tables, cache.retry.attempts) == (("public.products",), 5)
    assert settings.log.dir == file.parent / "here/log"
    assert settings.run_dir == file.parent / "var/run"
    assert cache.folder == file.parent / "var/cache"
    assert CANARY not in repr(settings) + str(settings)


def test_an_absolute_path_stays(file: Path) -> None:
    file.write_text(f'run_dir = "/srv/run"\n[source]\ndsn = "{DSN}"\n')
    assert load(file, options_model).run_dir == Path("/srv/run")


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        ('sourse = 1\n[source]\ndsn = "x"', "sourse", "source"),
        ('[source]\ndsn = "x"\ntabels = []', "source.tabels", "tables"),
        ('[source]\ndsn = "x"\n[log]\nsegment_byte = 1', "log.segment_byte", "segment_bytes"),
        ('[source]\ndsn = "x"\n[stores.cache]\nkind = "redis"\nurll = "x"', "stores.cache.urll", "url"),
        ('[source]\ndsn = "x"\n[stores.cache]\nkind = "redis"\nretry = {attemps = 1}', "stores.cache.retry.attemps", "attempts"),
        ('[source]\ndsn = "x"\n[stores.cache]\nkind = "redis"\npasword_file = "x"', "stores.cache.pasword_file", "password_file"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion_at_any_depth(file: Path, text: str, key: str, suggestion: str) -> None:
    assert problems(file, text) == [f"{file}: {key}: unknown key → did you mean {suggestion}?"]


def test_an_unknown_key_like_nothing_lists_the_known_ones(file: Path) -> None:
    (line,) = problems(file, '[source]\ndsn = "x"\n[http]\nzzz = 1')
    assert "→ known keys: listen, token, token_file" in line


def test_every_problem_has_its_line(file: Path) -> None:
    lines = problems(
        file,
        f'''
        [source]
        slot = "{CANARY}!"
        [stores.Cache]
        kind = "redis"
        [stores.other]
        kind = "riak"
        [stores.third]
        url = "x"
        [stores.fourth]
        kind = "redis"
        batch_rows = "{CANARY}"
        ''',
    )
    keys = [line.removeprefix(f"{file}: ").split(":")[0] for line in lines]
    assert sorted(keys) == [
        "source.dsn",
        "source.slot",
        "stores.Cache",
        "stores.fourth.batch_rows",
        "stores.other.kind",
        "stores.third.kind",
    ]


def test_a_slot_name_that_no_server_takes(file: Path) -> None:
    (line,) = problems(file, '[source]\ndsn = "x"\nslot = "My-slot"')
    assert "lower-case letters, digits and _ only" in line


@pytest.mark.parametrize("listen", ["nonsense", ":8642", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:http"])
def test_an_address_to_listen_at_that_is_none(file: Path, listen: str) -> None:
    (line,) = problems(file, f'[source]\ndsn = "x"\n[http]\nlisten = "{listen}"')
    assert "http.listen" in line
    assert "write host:port" in line


def test_a_single_table_that_is_no_list(file: Path) -> None:
    (line,) = problems(file, '[source]\ndsn = "x"\ntables = "public.t"')
    assert "source.tables: should be a list" in line
    assert 'tables = ["…"]' in line


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f'source = {{ dsn = "{DSN}", tables = [] }}', "source.tables"),
        (f'source = {{ dsn = "{DSN}", tables = ["!public.audit_log"] }}', "source.tables"),
        (f'source = {{ dsn = "{DSN}" }}\n[stores.cache]\nkind = "redis"\ntables = []', "stores.cache.tables"),
    ],
)
def test_a_list_of_tables_that_selects_none(file: Path, text: str, key: str) -> None:
    (line,) = problems(file, text)
    assert f"{key}: selects no table" in line


@pytest.mark.parametrize(
    ("text", "key"), [('[log]\ndir = ""', "log.dir"), ('run_dir = ""', "run_dir"), ('[http]\ntls_key = ""', "http.tls_key")]
)
def test_a_path_that_names_nothing_is_not_the_folder_of_the_file(file: Path, text: str, key: str) -> None:
    (line,) = problems(file, f'{text}\n[source]\ndsn = "x"')
    assert f"{key}: is empty; name a path, or leave the key out" in line


def test_a_path_that_is_needed_cannot_be_left_out() -> None:
    with pytest.raises(ValidationError, match="is empty; name a path "):
        Warehouse.model_validate({"kind": "iceberg", "path": ""})


def test_no_source_at_all(file: Path) -> None:
    assert problems(file, "") == [f"{file}: source: is missing"]


@pytest.mark.parametrize("text", ["stores = 3", "stores = {cache = 3}"])
def test_stores_that_are_no_tables(file: Path, text: str) -> None:
    assert "must be" in problems(file, f'{text}\n[source]\ndsn = "x"')[0]


def test_a_missing_variable_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    (line,) = problems(file, '[source]\ndsn = "postgresql://${NO_SUCH}@h/d"')
    assert line == f"{file}: source.dsn: the environment has no variable NO_SUCH → export NO_SUCH=…"


def test_variables_reach_every_depth(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "p@ss/w:rd")
    monkeypatch.setenv("TABLE", "public.orders")
    file.write_text(
        '[source]\ndsn = "postgresql://u:${PW}@h/d"\ntables = ["${TABLE}"]\n[stores.c]\nkind = "redis"\npassword = "${PW}"'
    )
    settings = load(file, options_model)
    assert settings.source.dsn.get_secret_value() == "postgresql://u:p%40ss%2Fw%3Ard@h/d"
    assert settings.source.tables == ("public.orders",)
    cache = settings.stores["c"]
    assert isinstance(cache, CacheOptions)
    assert cache.password == SecretStr("p@ss/w:rd")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f'[source]\ndsn = "{DSN}"', "source.dsn"),
        (f'[source]\ndsn = "host=h password={CANARY} user=${{USER}}"', "source.dsn"),
        ('[source]\ndsn = "host=h"\n[stores.cache]\nkind = "redis"\npassword = "s3cr3t-canary"', "stores.cache.password"),
        ('[source]\ndsn = "host=h"\n[http]\ntoken = "s3cr3t-canary=xyz"', "http.token"),
        ('[source]\ndsn = "host=h"\n[privacy]\nkey = "${A}-s3cr3t-canary"', "privacy.key"),
    ],
)
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o666, 0o620])
def test_a_secret_in_a_file_that_others_may_read_is_refused(
    file: Path, text: str, key: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A", "x" * 40)
    monkeypatch.setenv("USER", "me")
    file.write_text(text)
    file.chmod(mode)
    (line,) = problems(file, text)
    assert line.startswith(f"{file}: {key}: others may read the file")
    assert f"chmod 600 {file}" in line
    file.chmod(0o600)
    load(file, options_model)


@pytest.mark.parametrize(
    "text",
    [
        '[source]\ndsn = "postgresql://cdc:${PW}@db.internal/shop?sslmode=require"',
        '[source]\ndsn = "host=h password=${PW}"\n[http]\ntoken = "${PW}${PW}"',
        '[source]\ndsn = "${DSN}"\n[stores.cache]\nkind = "redis"\npassword = "${PW}${PW}"',
        '[source]\ndsn = "postgresql://cdc@db.internal/shop"\ntables = ["public.*"]',
        '[source]\ndsn = "service=prod"',
    ],
)
def test_a_file_without_a_secret_may_be_read(file: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", CANARY)
    monkeypatch.setenv("DSN", DSN)
    file.write_text(text)
    file.chmod(0o644)
    load(file, options_model)


def test_a_secret_from_a_file(file: Path) -> None:
    for name, mode in (("dsn", 0o400), ("pw", 0o600)):
        (file.parent / name).write_text(f"{DSN if name == 'dsn' else CANARY}\n")
        (file.parent / name).chmod(mode)
    file.write_text('[source]\ndsn_file = "dsn"\n[stores.cache]\nkind = "redis"\npassword_file = "pw"')
    settings = load(file, options_model)
    cache = settings.stores["cache"]
    assert isinstance(cache, CacheOptions)
    assert cache.password is not None
    assert (settings.source.dsn.get_secret_value(), cache.password.get_secret_value()) == (DSN, CANARY)
    assert CANARY not in repr(settings)


def test_a_rotated_secret_counts_from_the_next_use_on(file: Path) -> None:
    secret = file.parent / "dsn"
    secret.write_text(DSN)
    secret.chmod(0o600)
    file.write_text('[source]\ndsn_file = "dsn"')
    dsn = load(file, options_model).source.dsn
    secret.write_text(f"{DSN}?application_name=other\n")
    assert dsn.get_secret_value() == f"{DSN}?application_name=other"
    for gone in (lambda: secret.write_text(""), secret.unlink):
        gone()
        with capture_logs() as said:
            assert [dsn.get_secret_value() for _ in range(3)] == [f"{DSN}?application_name=other"] * 3
        [line] = said
        assert line["event"] == "a secret's file cannot be read, so the last secret counts"
        assert str(secret) in line["hint"]
    secret.write_text(DSN)
    with capture_logs() as said:
        assert dsn.get_secret_value() == DSN
    assert said == []


def test_a_secret_file_that_others_may_read_is_refused(file: Path) -> None:
    secret = file.parent / "dsn"
    secret.write_text(DSN)
    secret.chmod(0o644)
    assert problems(file, '[source]\ndsn_file = "dsn"') == [
        f"{file}: source.dsn_file: others may read {secret} → chmod 0400 {secret}"
    ]


@pytest.mark.parametrize(
    ("owner", "we", "mode", "taken"),
    [
        (1000, 1000, 0o400, True),
        (1000, 1000, 0o440, False),
        (0, 1000, 0o440, True),
        (0, 1000, 0o640, True),
        (0, 1000, 0o660, False),
        (0, 1000, 0o444, False),
        (0, 0, 0o440, False),
        (2000, 1000, 0o440, False),
    ],
)
def test_who_may_read_a_secret_beside_us(
    owner: int, we: int, mode: int, taken: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = file.parent / "dsn"
    secret.write_text(DSN)
    real = os.fstat

    def found(descriptor: int) -> os.stat_result:
        facts = real(descriptor)
        if not os.path.samestat(facts, secret.stat()):
            return facts
        return os.stat_result((0o100000 | mode, *facts[1:4], owner, *facts[5:10]))

    monkeypatch.setattr(os, "fstat", found)
    monkeypatch.setattr(os, "geteuid", lambda: we)
    text = '[source]\ndsn_file = "dsn"'
    if taken:
        file.write_text(text)
        assert load(file, options_model).source.dsn.get_secret_value() == DSN
    else:
        assert "others may read" in " ".join(problems(file, text))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('dsn_file = "nowhere"', "no such file or directory"),
        ("dsn_file = 3", "should be the path of a file"),
        ('dsn_file = "cdc.toml"\ndsn = "x"', "give either dsn or dsn_file, not both"),
    ],
)
def test_secret_files_that_do_not_serve(file: Path, text: str, what: str) -> None:
    file.touch(0o600)
    assert what in " ".join(problems(file, f"[source]\n{text}"))


def test_only_secrets_come_from_files(file: Path) -> None:
    assert "unknown key" in problems(file, '[source]\ndsn = "x"\nslot_file = "x"')[0]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"[source", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), "longer than"),
    ],
)
def test_files_that_are_no_configuration(file: Path, content: bytes, what: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=what):
        load(file, options_model)


def test_a_list_of_tables_beside_options_of_one_of_them_says_how_both_are_written(file: Path) -> None:
    file.write_text('[stores.c]\ntables = ["public.*"]\n[stores.c.tables."public.orders"]\nkey = "o:{id}"\n')
    with pytest.raises(ConfigError, match="not valid TOML") as refused:
        load(file, options_model)
    assert "select = [...]" in str(refused.value.hint)


def test_no_file(file: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load(file, options_model)


def test_prepared_transactions_and_column_policies_exclude_each_other() -> None:
    policies: Any = {"public.users": {"email": "mask"}}
    Source(dsn=SecretStr("x"), columns=policies)
    with pytest.raises(ValueError, match="two_phase cannot stand together"):
        Source(dsn=SecretStr("x"), columns=policies, two_phase=True)


def test_tables_of_a_store_with_options(file: Path) -> None:
    file.write_text(
        f'source = {{ dsn = "{DSN}" }}\n[stores.c]\nkind = "redis"\nurl = "redis://h"\n[stores.c.tables]\nselect = ["public.*"]\n'
        '[stores.c.tables."public.*"]\nas = { doc = "json" }\n[stores.c.tables."public.t"]\nas = { payload = "text" }'
    )
    options = load(file, sinks.options_model).stores["c"]
    assert options.tables == ("public.*",)
    assert shown_as(options.as_rules, "public.t") == {"doc": "json", "payload": "text"}
    assert shown_as(options.as_rules, "public.u") == {"doc": "json"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[stores.c.tables."public.t"]\nass = { a = "text" }',
            "stores.c.tables.public.t.ass: unknown key → did you mean as?",
        ),
        ('[stores.c.tables."public.t"]\nas = { a = "texts" }', "stores.c.tables.public.t.as.a: should be 'text' or 'json'"),
        ('[stores.c.tables]\nselct = ["public.t"]', "selct is neither `select` nor a table"),
        (
            '[stores.c.tables]\nselect = ["public.u"]\n[stores.c.tables."public.t"]\nas = {}',
            "public.t has options here, but is not a table",
        ),
        ("tables = []", "stores.c.tables: selects no table"),
    ],
)
def test_options_of_tables_that_make_no_sense(file: Path, text: str, said: str) -> None:
    file.write_text(f'source = {{ dsn = "{DSN}" }}\n[stores.c]\nkind = "console"\n{text}')
    with pytest.raises(SettingsError) as caught:
        load(file, sinks.options_model)
    assert said in caught.value.problems[0].line()


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        (
            '[http]\nlisten = "0.0.0.0:8642"',
            "http.listen: '0.0.0.0' is not a loopback address",
            "set token_file, tls_cert, tls_key",
        ),
        ('[http]\ntoken = "short"', "http.token: is shorter than 16 characters", "make one with: openssl rand"),
        ('[http]\ntls_cert = "cert"', "http.tls_cert: tls_cert and tls_key need each other", "set both"),
        ('[privacy]\nkey = "short"', "privacy.key: is shorter than 32 bytes", "make one with: openssl rand"),
        (
            '[source.columns."public.t"]\nmail = "hmac"',
            "source.columns: column mail of public.t has the policy hmac, which needs a key",
            "set key_file in [privacy]",
        ),
    ],
)
def test_what_the_daemon_would_refuse_is_said_by_every_command(file: Path, text: str, key: str, hint: str) -> None:
    (line,) = problems(file, f'[source]\ndsn = "host=h"\n{text}')
    assert line.startswith(f"{file}: {key}")
    assert f"→ {hint}" in line


@pytest.mark.parametrize("key", ["{id}", "cdc:{id}", "o:{id", "o:{id!r}", ""])
@pytest.mark.parametrize("where", ['key = "KEY"', '[stores.c.tables."public.t"]\nkey = "KEY"'])
def test_a_template_that_names_no_tables_keys_is_refused_where_it_stands(file: Path, where: str, key: str) -> None:
    file.write_text(f'[source]\ndsn = "host=h"\n[stores.c]\nkind = "redis"\nurl = "redis://h"\n{where.replace("KEY", key)}')
    with pytest.raises(SettingsError, match=r"stores\.c\..*key: key = .* cannot name a cache's keys"):
        load(file, sinks.options_model)


@pytest.mark.parametrize(("text", "key"), [("source = 1", "source"), ('[source]\ndsn = "host=h"\ncolumns = "x"', "source.columns")])
def test_what_has_to_be_a_table_is_said_in_the_words_of_toml(file: Path, text: str, key: str) -> None:
    assert problems(file, text) == [f"{file}: {key}: must be a table: [{key}]"]
