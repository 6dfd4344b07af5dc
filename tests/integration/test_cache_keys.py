"""Which keys of the server are the cache's: another template, another form of values, erasing, and other people's keys beside them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from cdc.errors import ConfigError, Stopped, StoreError
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.position import ZERO_CUT
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from sinks.cache.resp import Limits
from sinks.cache.sink import CacheSink
from sinks.contract import Outcome
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, Row, batch, order, schema, upserts
from tests.integration.test_cache_fence import LEDGER, STORES, Site
from tests.logs import LooseLog, cut

OTHERS = {
    "public.orders:1:views": "17",
    "public.orders:settings": json.dumps({"id": 1, "theme": "dark"}),
    "public.orders:9:json": json.dumps({"id": 10}),
    "public.orders:list": "[1]",
    "o:1:views": "3",
    "o:settings": "x",
}
"""Other programs' keys, below the prefixes of the store's tables."""
MODULES = ("sinks.cache.transactions", "sinks.cache.rowwriter", "sinks.cache.barriers")


class Died(BaseException):
    pass


@pytest.fixture
def site(valkey: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("sinks.cache.rowwriter.LIMITS", Limits(3, 1 << 20))
    with closing(Site(valkey.url)) as one:
        begin_again(one)
        yield one
        assert {key: one.client.get(key) for key in OTHERS} == OTHERS


def begin_again(site: Site) -> None:
    """Another log, and nothing on the server but other people's keys."""
    site.client.flushdb()
    site.client.mset(OTHERS)
    site.client.lpush("public.orders:77", "somebody's")
    site.log = LooseLog()


def filled(site: Site, **options: Any) -> CacheSink:
    """Rows 0 to 7 of the orders, two of them deleted again, and two pairs."""
    sink = site.opened(**options)
    for table in (NUMBERED, PAIRS):
        sink.prepare(TopicSchema.of(table))
    site.feed(sink, upserts(NUMBERED, 1, [order(i) for i in range(8)]))
    site.feed(sink, batch(NUMBERED, [(Op.DELETE, 9, order(2)), (Op.DELETE, 10, order(5)), (Op.UPDATE, 11, order(1, "paid"))]))
    site.feed(sink, upserts(PAIRS, 12, [{"a": "x", "b": "y", "v": "1"}, {"a": "x:y", "b": "", "v": None}]))
    site.commit(sink, cut(13))
    return sink


def ours(site: Site) -> dict[str, Any]:
    return {key: value for key, value in site.rows().items() if key not in OTHERS and key != "public.orders:77"}


def read(sink: CacheSink, table: Table) -> list[Row]:
    return sorted((row for part in sink.scan(TopicSchema.of(table)) for row in part.to_pylist()), key=str)


def interrupted(monkeypatch: pytest.MonkeyPatch, attempt: Callable[[], object], at: int) -> bool:
    """Whether the attempt died, at the so-manieth point of it."""
    reached = 0

    def die(_: str) -> None:
        nonlocal reached
        reached += 1
        if reached == at:
            raise Died

    with monkeypatch.context() as patched:
        for module in MODULES:
            patched.setattr(f"{module}.crashpoint", die)
        try:
            attempt()
        except Died:
            return True
    return False


# -- another projection ------------------------------------------------------------------------------------------------

CHANGES = [
    ({}, {"key": "{schema}.{table}/{key}"}),
    ({}, {"value": "hash"}),
    ({"value": "hash"}, {}),
    ({}, {"key": "{schema}.{table}/{key}", "value": "hash"}),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_keys_and_values_are_made_over_when_the_configuration_changes(
    site: Site, before: dict[str, str], after: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the log: nothing is read from the values, nothing is missing meanwhile for longer than it takes, and it goes on from where it was."""
    expected_rows = read(filled(site, **after), NUMBERED)
    expected = ours(site)
    for at in range(1, 200):
        begin_again(site)
        filled(site, **before)
        died = interrupted(monkeypatch, lambda: site.opened(**after), at)
        sink = site.opened(**after)
        assert ours(site) == expected
        assert (sink.applied(), read(sink, NUMBERED)) == (cut(13), expected_rows)
        site.feed(sink, upserts(NUMBERED, 14, [order(20)]))
        assert len(ours(site)) == len(expected) + 1
        if not died:
            assert at > 8
            return
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_what_somebody_put_into_values_is_not_read_back(site: Site, before: dict[str, str], after: dict[str, str]) -> None:
    """What is made over, and what changes later, comes from the log alone."""
    filled(site, **after)
    expected = ours(site)
    begin_again(site)
    filled(site, **before)
    forged = ours(site)
    for key in forged:
        if before.get("value") == "hash":
            site.client.hset(key, mapping={"status": "forged", "more": "forged"})
        else:
            site.client.set(key, '{"status": "forged", "_cdc_position": 99}')
    sink = site.opened(**after)
    assert sink.applied() == cut(13)
    assert ours(site) == expected
    site.feed(sink, upserts(NUMBERED, 14, [order(1, "sent")]))
    assert "forged" not in str(ours(site))


def test_a_change_of_the_template_may_be_taken_back_or_be_followed_by_another(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = ["{schema}.{table}:{key}", "{table}/{key}", "{table}|{key}|"]
    made = {}
    for template in templates:
        begin_again(site)
        filled(site, key=template)
        made[template] = ours(site)
    for at in range(1, 30):
        for last in templates:
            begin_again(site)
            filled(site, key=templates[0])
            interrupted(monkeypatch, lambda: site.opened(key=templates[1]), at)
            interrupted(monkeypatch, lambda: site.opened(key=templates[2]), at // 2)
            assert site.opened(key=last).applied() == cut(13)
            assert ours(site) == made[last]
            assert set(site.client.hgetall(LEDGER)) & {"former"} == set()


@pytest.mark.parametrize("template", ["row:{key}", "o:{id}"])
def test_a_template_that_cannot_name_what_is_there_touches_nothing(site: Site, template: str) -> None:
    filled(site)
    before = ours(site)
    with pytest.raises(ConfigError):
        site.opened(key=template)
    assert ours(site) == before
    assert site.opened().applied() == cut(13)


def test_a_reshape_that_was_interrupted_is_finished_before_anything_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns swap their names, and the key's among them: a rewrite over its own result would mix them up."""
    swapped = dataclasses.replace(
        NUMBERED,
        columns=tuple(
            dataclasses.replace(
                c, name={"id": "customer_id", "customer_id": "id", "status": "note", "note": "status"}.get(c.name, c.name)
            )
            for c in NUMBERED.columns
        ),
    )
    for value, template in (("json", "{schema}.{table}:{key}"), ("hash", "{schema}.{table}:{key}")):
        for at in range(1, 200):
            begin_again(site)
            sink = filled(site, value=value, key=template)
            expected = [{**row, "id": row["customer_id"], "customer_id": row["id"], "status": row["note"], "note": row["status"]} for row in read(sink, NUMBERED)]  # fmt: skip
            change = schema(swapped, 14)
            died = interrupted(monkeypatch, lambda sink=sink, change=change: site.feed(sink, change), at)
            again = site.opened(value=value, key=template)
            if again.held("public.orders") < 14:
                site.feed(again, change)
            site.commit(again, cut(14))
            found = read(again, swapped)
            assert found == sorted(expected, key=str)
            shape = again.shape("public.orders")
            assert shape is not None
            assert (shape.schema, shape.position) == (TopicSchema.of(swapped), 14)
            site.feed(again, batch(swapped, [(Op.TRUNCATE, 15, {})]))
            assert [key for key in ours(site) if "orders" in key] == []
            if not died:
                break


def test_rows_that_change_their_keys_leave_no_key_behind(site: Site) -> None:
    """Another column joins the key; what the source truncates later is found under its newer names."""
    sink = filled(site)
    wider = dataclasses.replace(
        NUMBERED, columns=tuple(dataclasses.replace(c, key=c.name in ("id", "status")) for c in NUMBERED.columns)
    )
    site.feed(sink, schema(wider, 14))
    names = {key for key in ours(site) if "orders" in key}
    assert names == {f"public.orders:{i}:{'paid' if i == 1 else 'new'}" for i in (0, 1, 3, 4, 6, 7)}
    site.feed(sink, upserts(wider, 15, [order(30)]))
    site.feed(sink, batch(wider, [(Op.DELETE, 16, order(0))]))
    sink = site.opened()
    site.feed(sink, batch(wider, [(Op.TRUNCATE, 17, {})]))
    assert [key for key in ours(site) if "orders" in key] == []


def test_a_table_that_is_made_again_with_another_key_leaves_nothing_of_the_first(site: Site) -> None:
    sink = filled(site)
    site.feed(sink, schema(NUMBERED, 14, Kind.DROPPED, empties=True))
    assert [key for key in ours(site) if "orders" in key] == []
    again = dataclasses.replace(
        NUMBERED, oid=99, columns=tuple(dataclasses.replace(c, key=c.name == "status") for c in NUMBERED.columns)
    )
    site.feed(sink, schema(again, 15, Kind.CREATED, empties=True))
    sink.prepare(TopicSchema.of(again))
    site.feed(sink, upserts(again, 16, [order(1, "a"), order(2, "b")]))
    assert [key for key in ours(site) if "orders" in key] == ["public.orders:a", "public.orders:b"]
    site.feed(sink, batch(again, [(Op.TRUNCATE, 18, {})]))
    assert [key for key in ours(site) if "orders" in key] == []


def test_a_table_that_was_dropped_and_comes_without_a_key_stops_nothing(site: Site) -> None:
    sink = filled(site)
    keyless = dataclasses.replace(NUMBERED, oid=99, columns=tuple(dataclasses.replace(c, key=False) for c in NUMBERED.columns))
    assert site.feed(sink, schema(keyless, 14, Kind.CREATED, empties=True)) == Outcome(1)
    assert [key for key in ours(site) if "orders" in key] == []
    assert len(site.feed(sink, upserts(keyless, 15, [order(1), order(1)])).dead) == 2
    site.commit(sink, cut(16))
    assert site.opened().applied() == cut(16)


# -- erasing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["json", "hash"])
def test_erasing_takes_every_key_of_the_store_and_no_other(site: Site, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another log wrote them, or nobody has opened the store; interrupted anywhere, and done again."""
    for at in range(1, 60):
        site.log = LooseLog()
        zombie = filled(site, value=value)
        site.client.hset("cdc:{cache}:dead", "a", "b")
        site.log = LooseLog()
        with pytest.raises(Stopped, match="another log"):
            site.opened(value=value)
        died = interrupted(monkeypatch, site.sink(value=value).erase, at)
        begun = site.client.hget(LEDGER, "log") in ("", None)
        if begun:
            with pytest.raises(StoreError):
                zombie.apply(upserts(NUMBERED, 14, [order(99)]))
            with pytest.raises(StoreError):
                zombie.commit(cut(14))
        sink = site.opened(value=value) if at % 2 and begun else site.sink(value=value)
        sink.erase()
        assert ours(site) == {}
        assert site.client.keys("cdc:*") == []
        sink.erase()
        assert site.opened(value=value).applied() == ZERO_CUT
        site.client.delete(LEDGER)
        if not died:
            return
    raise AssertionError("it never came to an end")


def test_a_store_that_is_being_erased_is_not_written_by_whoever_opens_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one who erases is slow, and a follower has begun to fill the store again meanwhile."""
    filled(site)
    opened: list[CacheSink] = []

    def come(name: str) -> None:
        if name == "cache.change.looked" and site.client.hget(LEDGER, "log") == "" and not opened:
            opened.append(site.sink())
            site.log = LooseLog()
            opened[0].open(site.log.reader(), 1000)
            opened[0].prepare(TopicSchema.of(NUMBERED))
            site.feed(opened[0], upserts(NUMBERED, 1, [order(i) for i in range(8)]))

    monkeypatch.setattr("sinks.cache.transactions.crashpoint", come)
    with pytest.raises(StoreError):
        site.sink().erase()
    assert len(opened) == 1
    assert len(ours(site)) == 8


def test_two_stores_on_one_server_keep_to_themselves(site: Site) -> None:
    """Each has a ledger. Below one prefix, too, as long as their keys differ: what is not a row of this store's table by its content stays."""
    first = filled(site, key="s:{table}:{key}")
    other = CacheSink("other", site.sink(key="s:{table}:{key}")._options.model_copy(update={"key": "s:{table}:again:{key}"}))
    with closing(other):
        other.open(site.log.reader(), 5)
        other.prepare(TopicSchema.of(NUMBERED))
        other.apply(upserts(NUMBERED, 1, [order(i) for i in range(8)]))
        assert len([key for key in ours(site) if key.startswith("s:orders:again:")]) == 8
        assert len(read(first, NUMBERED)) == 6, "the other's keys are not shown as rows"
        site.feed(first, batch(NUMBERED, [(Op.TRUNCATE, 14, {})]))
        assert len([key for key in ours(site) if key.startswith("s:orders:again:")]) == 8
        first.erase()
        assert len([key for key in ours(site) if key.startswith("s:orders:again:")]) == 8
        other.erase()
        assert ours(site) == {}


def test_another_database_of_the_server_is_another_place(site: Site) -> None:
    filled(site)
    elsewhere = Site(site.url.removesuffix("/0") + "/1")
    with closing(elsewhere):
        elsewhere.log, elsewhere.epoch = site.log, site.epoch
        sink = elsewhere.opened()
        assert sink.applied() == ZERO_CUT
        assert elsewhere.everything().keys() == {LEDGER, STORES}
        elsewhere.client.flushdb()
    assert site.opened().applied() == cut(13)


def test_braces_in_a_template_or_a_value_mean_nothing_to_one_server(site: Site) -> None:
    sink = site.opened(key="{{{schema}}}:{table}:{key}")
    sink.prepare(TopicSchema.of(PAIRS))
    site.feed(sink, upserts(PAIRS, 1, [{"a": "{x}", "b": "}", "v": "1"}]))
    assert list(ours(site)) == ["{public}:pairs:{x}:}"]
    assert read(sink, PAIRS) == [{"a": "{x}", "b": "}", "v": "1"}]


def test_data_that_somebody_deleted_alone_is_for_the_audit_to_find(site: Site) -> None:
    """The ledger is whole, so the store says that it is: docs/decisions/cache-fence.md."""
    sink = filled(site)
    site.client.delete("public.orders:3")
    assert site.opened().applied() == cut(13)
    assert [row["id"] for row in read(sink, ORDERS)] == ["0", "1", "4", "6", "7"]


def test_a_ledger_that_somebody_deleted_alone_is_filled_again_over_what_is_there(site: Site) -> None:
    """Keys that the log deleted since are deleted again, also by a TRUNCATE that came while they stood there without a ledger."""
    sink = filled(site)
    site.client.delete(LEDGER)
    with pytest.raises(StoreError) as failure:
        site.feed(sink, batch(NUMBERED, [(Op.TRUNCATE, 14, {})]))
    assert failure.value.retryable
    again = site.opened()
    assert again.applied() == ZERO_CUT
    for topic in ("public.orders", "public.pairs"):
        for changes in site.log.reader().read(topic, again.held(topic), site.log.head.position):
            again.apply(changes)
    again.commit(site.log.head)
    assert sorted(ours(site)) == ["public.pairs:x:y", "public.pairs:x\\:y:"]


def test_a_row_s_key_of_another_type_is_taken_over(site: Site) -> None:
    """The name is the row's, by configuration."""
    sink = site.opened()
    sink.prepare(TopicSchema.of(ORDERS))
    site.client.lpush("public.orders:5", "theirs")
    site.feed(sink, upserts(ORDERS, 1, [order(5)]))
    assert read(sink, ORDERS)[0]["id"] == "5"


@pytest.mark.parametrize("value", ["json", "hash"])
def test_a_store_of_an_earlier_version_goes_on_and_is_erased_whole(site: Site, value: str) -> None:
    """Its ledger holds the source's tables in place of the topics' schemas."""
    sink = filled(site, value=value)
    held = {table: read(sink, table) for table in (NUMBERED, PAIRS)}
    for table in held:
        site.client.hset(LEDGER, f"shape:{table.qualified}", f"0 {table.to_json()}")
    again = site.opened(value=value)
    assert again.applied() == cut(13)
    assert {table: read(again, table) for table in held} == held
    site.sink(value=value).erase()
    assert ours(site) == {}


def test_what_can_be_read_of_a_damaged_ledger_is_erased(site: Site) -> None:
    for field, text, left in (("at:public.orders", "x", 0), ("position", "x", 0), ("shape:public.pairs", "7 {}", 2)):
        begin_again(site)
        filled(site)
        site.client.hset(LEDGER, field, text)
        site.sink().erase()
        assert len(ours(site)) == left, field
