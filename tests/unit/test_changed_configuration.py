"""A cdc.toml that is changed while the daemon runs: what is taken in, what is put off, what is refused; and how the children get it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc.daemon import configuration as watched
from cdc.daemon.configuration import Configuration, ConfigurationChange, Handed, Handout, NameChanges, of_capture
from cdc.demo.configuration import Value, toml
from cdc.derive.declarations import said_of_views
from cdc.errors import ConfigError
from sinks import options_model
from tests.sim.clock import Clock

CACHE: Mapping[str, Value] = {"kind": "redis", "url": "redis://cache:6379/0"}
CONSOLE: Mapping[str, Value] = {"kind": "console"}


def text(stores: Mapping[str, Mapping[str, Value]], **sections: Mapping[str, Value]) -> str:
    return toml(
        {
            "": {"run_dir": "run"},
            "source": {"dsn": "host=127.0.0.1 dbname=shop"},
            **sections,
            **{f"stores.{name}": options for name, options in stores.items()},
        }
    )


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "LOOK_S", 0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cdc.toml"
    path.write_text(text({"cache": CACHE}))
    return path


def settled(configuration: Configuration) -> ConfigurationChange | None:
    """What the change comes to, once nobody is writing any more."""
    assert configuration.look() is None, "somebody may still be writing"
    return configuration.look()


def rewritten(file: Path, content: str) -> None:
    aside = file.with_suffix(".new")
    aside.write_text(content)
    aside.replace(file)


def test_stores_that_were_added_changed_and_removed_are_named(file: Path) -> None:
    configuration = Configuration(file, options_model)
    assert configuration.look() is None
    rewritten(file, text({"cache": CACHE, "second": CONSOLE}))
    assert settled(configuration) == ConfigurationChange(NameChanges(added=("second",)))
    assert list(configuration.settings.stores) == ["cache", "second"]
    rewritten(file, text({"cache": {**CACHE, "key": "order:{id}"}, "second": CONSOLE}))
    assert settled(configuration) == ConfigurationChange(NameChanges(changed=("cache",)))
    rewritten(file, text({"second": CONSOLE}))
    assert settled(configuration) == ConfigurationChange(NameChanges(removed=("cache",)))
    assert (configuration.problem, configuration.pending) == (None, ())
    assert configuration.look() is None


def test_it_looks_once_a_second_by_its_clock(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "LOOK_S", 1.0)
    clock = Clock()
    configuration = Configuration(file, options_model, clock)
    rewritten(file, text({"cache": CACHE, "second": CONSOLE}))
    for _ in range(5):
        clock.now += 0.1
        assert configuration.look() is None
    clock.now += 1
    assert configuration.look() is None, "somebody may still be writing"
    assert configuration.look() is None, "it does not look at once"
    clock.now += 1
    assert configuration.look() == ConfigurationChange(NameChanges(added=("second",)))


def test_what_means_the_same_changes_nothing(file: Path) -> None:
    configuration = Configuration(file, options_model)
    before = configuration.settings
    rewritten(file, "# a remark\n" + text({"cache": {**CACHE, "value": "json"}}, http={"listen": "127.0.0.1:8642"}))
    assert settled(configuration) is None
    assert configuration.settings is before
    assert configuration.pending == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (text({"cache": {"kind": "nothing"}}), "stores.cache.kind: there is no store of kind 'nothing' → use one of"),
        ("[source", "is not valid TOML"),
        ("x = " + "[" * 5000 + "]" * 5000, "is not valid TOML: nested too deep"),
        ("x = " + "9" * 5000, "is not valid TOML: nested too deep, or a number of too many digits"),
        ("", "source: is missing"),
        (text({"cache": {**CACHE, "uri": "x"}}), "stores.cache.uri: unknown key → did you mean url?"),
        (
            text({"cache": {"kind": "redis", "url": "redis://:${NEW_PW}@cache"}}),
            "no variable NEW_PW → use KEY_file, or restart cdc run",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_and_changes_nothing(file: Path, content: str, problem: str) -> None:
    configuration = Configuration(file, options_model)
    before = configuration.settings
    rewritten(file, content)
    assert settled(configuration) is None
    assert configuration.settings is before
    assert configuration.problem is not None
    assert problem in configuration.problem
    assert "stays in force" in configuration.problem
    assert "\n" not in configuration.problem
    rewritten(file, text({"cache": CACHE}))
    assert settled(configuration) is None
    assert configuration.problem is None


def test_a_file_that_is_gone_changes_nothing(file: Path) -> None:
    configuration = Configuration(file, options_model)
    file.unlink()
    assert settled(configuration) is None
    assert configuration.problem is not None
    assert "does not exist" in configuration.problem


def test_all_but_stores_is_put_off_to_the_next_start_and_named(file: Path) -> None:
    configuration = Configuration(file, options_model)
    rewritten(
        file,
        text({"cache": CACHE, "second": CONSOLE}, log={"segment_bytes": 8192}, http={"listen": "127.0.0.1:9000"}).replace(
            "dbname=shop", "dbname=other"
        ),
    )
    assert settled(configuration) == ConfigurationChange(NameChanges(added=("second",)))
    assert configuration.settings.http.listen == "127.0.0.1:8642"
    [line] = configuration.pending
    assert "http.listen, log.segment_bytes, source.dsn take effect at the next start → restart cdc run" in line
    assert "other" not in line, "a DSN may hold a password"
    rewritten(file, text({"cache": CACHE}))
    assert settled(configuration) == ConfigurationChange(NameChanges(removed=("second",)))
    assert configuration.pending == (), "it says again what it said at the start"


ONE: Mapping[str, Value] = {"sql": "select id, status from orders", "key": ["id"]}
OVER: Mapping[str, Value] = {"sql": "select id from views.one", "key": ["id"]}
OTHER: Mapping[str, Value] = {**ONE, "sql": "select id, amount from orders"}


def with_views(**views: Mapping[str, Value]) -> str:
    return text({"cache": CACHE}, **{f"views.{name}": view for name, view in views.items()})


@pytest.fixture
def with_two(file: Path) -> Configuration:
    file.write_text(with_views(one=ONE, over=OVER))
    return Configuration(file, options_model, views_said=said_of_views)


def test_views_take_effect_at_once_and_those_that_are_computed_from_them(file: Path, with_two: Configuration) -> None:
    rewritten(file, with_views(one=OTHER, over=OVER, third=ONE))
    assert settled(with_two) == ConfigurationChange(views=NameChanges(added=("third",), changed=("one", "over")))
    assert (list(with_two.settings.views), with_two.pending) == (["one", "over", "third"], ())
    rewritten(file, with_views(one=OTHER, over={**OVER, "batch_rows": 10}))
    assert settled(with_two) == ConfigurationChange(views=NameChanges(changed=("over",), removed=("third",)))
    rewritten(file, with_views(one=OTHER, over={**OVER, "batch_rows": 10}).replace("cache:6379", "other:6379"))
    assert settled(with_two) == ConfigurationChange(NameChanges(changed=("cache",)))
    assert list(with_two.settings.views) == ["one", "over"]


@pytest.mark.parametrize(
    ("views", "problem"),
    [
        ({"one": {**ONE, "sql": "select id fro orders"}}, "views.one.sql"),
        ({"one": {**ONE, "sql": "select id from views.over"}, "over": OVER}, "in a circle"),
        ({"One": ONE}, "a view's name holds small letters"),
    ],
)
def test_views_that_cannot_be_declared_change_nothing(
    file: Path, with_two: Configuration, views: Mapping[str, Mapping[str, Value]], problem: str
) -> None:
    before = with_two.settings
    rewritten(file, with_views(**views))
    assert settled(with_two) is None
    assert with_two.settings is before
    assert with_two.problem is not None
    assert problem in with_two.problem
    rewritten(file, with_views(one=ONE, over=OVER))
    assert settled(with_two) is None
    assert (with_two.problem, with_two.settings.views) == (None, before.views)


def test_the_first_views_of_all_wait_for_the_next_start(file: Path) -> None:
    configuration = Configuration(file, options_model, views_said=said_of_views)
    rewritten(file, with_views(one=ONE))
    assert settled(configuration) is None
    [line] = configuration.pending
    assert "views.one takes effect at the next start" in line
    assert not configuration.settings.views
    rewritten(file, text({"cache": CACHE}))
    assert settled(configuration) is None
    assert configuration.pending == ()


def test_a_view_whose_topic_would_be_captured_waits_for_the_next_start(file: Path) -> None:
    """``source.tables`` leaves out the topics of views as they are at the start."""

    def everything(**views: Mapping[str, Value]) -> str:
        return with_views(**views).replace('dbname=shop"', 'dbname=shop"\ntables = ["*.*"]')

    file.write_text(everything(one=ONE))
    configuration = Configuration(file, options_model, views_said=said_of_views)
    rewritten(file, everything(one=OTHER, two=ONE))
    assert settled(configuration) is None
    [line] = configuration.pending
    assert "views.one, views.two take effect at the next start" in line
    assert configuration.settings.views["one"].sql == ONE["sql"]
    rewritten(file, everything(one=OTHER))
    assert settled(configuration) == ConfigurationChange(views=NameChanges(changed=("one",)))
    assert configuration.pending == ()


def test_a_secret_that_comes_after_the_file_that_names_it_is_taken(file: Path) -> None:
    """As from a Kubernetes Secret, which is not updated together with the ConfigMap."""
    configuration = Configuration(file, options_model)
    rewritten(file, text({"cache": CACHE, "second": {"kind": "redis", "url_file": "second.url"}}))
    with capture_logs() as said:
        assert settled(configuration) is None
        assert configuration.look() is None
        assert configuration.problem is not None
        assert "second.url: no such file" in configuration.problem
    assert len(said) == 1, "the same problem is said once"
    secret = file.with_name("second.url")
    secret.touch(0o600)
    secret.write_text("redis://second:6379/0")
    assert configuration.look() == ConfigurationChange(NameChanges(added=("second",)))
    assert configuration.problem is None


def test_rights_that_are_corrected_are_noticed(file: Path) -> None:
    """Neither the time nor the size of the file changes with them."""
    secret = text({"cache": CACHE, "second": {"kind": "redis", "url": "redis://:secret@second:6379/0"}})
    configuration = Configuration(file, options_model)
    rewritten(file, secret)
    file.chmod(0o644)
    assert settled(configuration) is None
    assert configuration.problem is not None
    assert "others may read the file" in configuration.problem
    file.chmod(0o600)
    assert ConfigurationChange(NameChanges(added=("second",))) in (configuration.look(), configuration.look())
    file.chmod(0o644)
    assert settled(configuration) is None
    assert configuration.problem is not None, "the next start would be refused"


def test_a_folder_that_is_swapped_behind_a_link_is_noticed(tmp_path: Path) -> None:
    """As Kubernetes does it with a ConfigMap, whose files may all be of one size and time."""
    for name, stores in (("one", {"cache": CACHE}), ("two", {"cachf": CACHE})):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "cdc.toml").write_text(text(stores))
        os.utime(folder / "cdc.toml", (1, 1))
    (tmp_path / "data").symlink_to("one")
    (tmp_path / "cdc.toml").symlink_to("data/cdc.toml")
    configuration = Configuration(tmp_path / "cdc.toml", options_model)
    (tmp_path / "aside").symlink_to("two")
    (tmp_path / "aside").replace(tmp_path / "data")
    assert settled(configuration) == ConfigurationChange(NameChanges(added=("cachf",), removed=("cache",)))


def test_a_file_that_somebody_is_writing_to_is_left_alone(file: Path) -> None:
    configuration = Configuration(file, options_model)
    whole = text({"cache": CACHE, "second": CONSOLE})
    for end in range(20, len(whole), 20):
        file.write_text(whole[:end])
        assert configuration.look() is None
    file.write_text(whole)
    assert configuration.look() is None
    assert configuration.problem is None
    assert configuration.look() == ConfigurationChange(NameChanges(added=("second",)))


@pytest.fixture
def handout(file: Path, request: pytest.FixtureRequest) -> Callable[[], tuple[Configuration, Handout, Handed]]:
    def make() -> tuple[Configuration, Handout, Handed]:
        configuration = Configuration(file, options_model)
        made = Handout(configuration)
        request.addfinalizer(made.close)
        return configuration, made, Handed(made.descriptor, file, options_model)

    return make


def test_a_child_goes_by_what_it_was_handed_and_not_by_the_file(
    file: Path, handout: Callable[[], tuple[Configuration, Handout, Handed]]
) -> None:
    configuration, made, child = handout()
    rewritten(file, "broken = [")
    settled(configuration)
    child.look()
    assert child.settings == configuration.settings
    assert Handed(made.descriptor, file, options_model).settings == configuration.settings, "one that starts again, too"
    rewritten(file, text({"second": CONSOLE}, http={"listen": "127.0.0.1:9000"}))
    assert settled(configuration) is not None
    made.write()
    before = child.settings
    child.look()
    assert child.settings is not before
    assert list(child.settings.stores) == ["second"]
    assert child.settings.http.listen == "127.0.0.1:8642"
    now = child.settings
    child.look()
    assert child.settings is now


def test_a_child_has_the_views_that_are_in_force(file: Path, request: pytest.FixtureRequest, with_two: Configuration) -> None:
    made = Handout(with_two)
    request.addfinalizer(made.close)
    child = Handed(made.descriptor, file, options_model)
    rewritten(file, with_views(one=OTHER, over=OVER))
    assert settled(with_two) is not None
    rewritten(file, with_views(one=OTHER, over=OVER, twö=ONE))
    assert settled(with_two) is None
    made.write()
    child.look()
    assert child.settings.views["one"].sql == OTHER["sql"]
    assert child.settings == with_two.settings


def test_capture_that_starts_again_knows_of_views_that_were_taken_out(
    file: Path, request: pytest.FixtureRequest, with_two: Configuration
) -> None:
    """They are declared again at once, and tables without rows have to be in the log by then."""
    made = Handout(with_two)
    request.addfinalizer(made.close)
    rewritten(file, with_views())
    assert settled(with_two) == ConfigurationChange(views=NameChanges(removed=("one", "over")))
    made.write()
    child = Handed(made.descriptor, file, options_model)
    assert (list(child.settings.views), list(of_capture(child).views)) == ([], ["one", "over"])
    rewritten(file, with_views(third=ONE))
    assert settled(with_two) == ConfigurationChange(views=NameChanges(added=("third",)))


def test_a_child_that_looks_while_it_is_written_keeps_what_it_has(
    handout: Callable[[], tuple[Configuration, Handout, Handed]],
) -> None:
    _, made, child = handout()
    before = child.settings
    os.pwrite(made.descriptor, b"torn", 0)
    child.look()
    assert child.settings is before
    made.write()
    child.look()
    assert child.settings.stores == before.stores


def test_a_child_takes_what_it_could_not_use_as_soon_as_it_can(
    file: Path, handout: Callable[[], tuple[Configuration, Handout, Handed]]
) -> None:
    """A file with a secret may be replaced while the supervisor has it and the child has not."""
    configuration, made, child = handout()
    secret = file.with_name("second.url")
    secret.touch(0o600)
    secret.write_text("redis://second:6379/0")
    rewritten(file, text({"cache": CACHE, "second": {"kind": "redis", "url_file": "second.url"}}))
    assert settled(configuration) is not None
    made.write()
    aside = secret.rename(file.with_name("aside"))
    with capture_logs() as said:
        child.look()
        child.look()
    assert list(child.settings.stores) == ["cache"]
    assert len(said) == 1, "the same problem is said once"
    aside.rename(secret)
    child.look()
    assert list(child.settings.stores) == ["cache", "second"]


def test_what_is_handed_lies_in_no_folder(file: Path, handout: Callable[[], tuple[Configuration, Handout, Handed]]) -> None:
    _, made, _ = handout()
    assert os.fstat(made.descriptor).st_nlink == 0
    assert sorted(path.name for path in file.parent.iterdir()) == ["cdc.toml"]


def test_relative_paths_stay_relative_to_the_file(file: Path, handout: Callable[[], tuple[Configuration, Handout, Handed]]) -> None:
    _, _, child = handout()
    assert child.settings.run_dir == file.parent / "run"


def test_the_daemon_does_not_start_with_a_file_that_cannot_be_used(file: Path) -> None:
    file.write_text("broken = [")
    with pytest.raises(ConfigError, match="not valid TOML"):
        Configuration(file, options_model)
