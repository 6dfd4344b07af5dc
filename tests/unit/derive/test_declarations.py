"""Views as the configuration declares them: what they read, what is refused, and their kernel behind a runner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from cdc.derive.around import StepLimits
from cdc.derive.declarations import SqlView, declared_views, refuse_circles, said_of_views
from cdc.derive.runner import ViewRunner
from cdc.errors import ConfigError, Stopped
from cdc.model.batch import Op
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.pgtypes import INT8
from cdc.plan.views import redefined
from cdc.settings.file import SettingsError, load
from cdc.settings.models import Settings
from cdc.state import status
from sinks import options_model
from tests.unit.derive.bed import CUSTOMERS, ORDERS, VIEW, bed_in

CALLED = '[views.v]\nsql = "select 1"\npython = "m:f"\nby = ["a"]\nreturns = { b = "int" }\nkey = ["a", "b"]\n'
BELOW = {"joined": "public.orders", "over": "views.joined", "top": "views.over"}
SQL = "select o.id, c.name, o.note from orders o join public.customers c on c.id = o.customer"


def settings(folder: Path, text: str) -> Settings:
    file = folder / "cdc.toml"
    file.touch(0o600)
    file.write_text(f'{text}\n[source]\ndsn = "dbname=shop"\n')
    return load(file, options_model)


def test_a_view_reads_the_topics_that_its_text_names(tmp_path: Path) -> None:
    found = declared_views(
        settings(
            tmp_path,
            f'[views.joined]\nsql = "{SQL}"\nkey = ["id"]\n'
            '[views.few]\nsql = "with few as (select id from views.joined) select id from few"\nkey = ["id"]\n',
        )
    )
    assert {name: tuple(view.topics) for name, view in found.items()} == {
        "joined": ("public.orders", "public.customers"),
        "few": ("views.joined",),
    }


def test_views_in_a_circle_are_refused_by_their_names() -> None:
    refuse_circles({"a": ["views.b", "public.t"], "b": ["public.t"], "c": ["views.a", "views.b"]})
    with pytest.raises(ConfigError, match="circle: b → c → b"):
        refuse_circles({"a": ["views.b"], "b": ["views.c"], "c": ["views.b"]})
    with pytest.raises(ConfigError, match="circle: a → a"):
        refuse_circles({"a": ["views.a"]})


def test_a_view_of_one_that_was_taken_out_is_refused_and_a_topic_of_somebody_elses_is_not(tmp_path: Path) -> None:
    over = '[views.over]\nsql = "select id from views.joined"\nkey = ["id"]\n'
    with bed_in(tmp_path / "bed") as bed, bed.runner() as runner:
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": "Ann"}]), (ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        runner.begin()
        logged = bed.reader.topics()
    both = settings(tmp_path, f'[views.joined]\nsql = "{SQL}"\nkey = ["id"]\n{over}')
    assert list(said_of_views(both, logged)) == ["joined", "over"]
    alone = settings(tmp_path, over)
    with pytest.raises(ConfigError, match=r"view over reads views\.joined, which is declared no longer"):
        said_of_views(alone, logged)
    assert said_of_views(alone, [replace(one, producer="job") for one in logged])


def test_what_is_said_of_views_over_two_of_one_view_grows_with_their_number(tmp_path: Path) -> None:
    """The supervisor of `cdc run` asks for it at each change of the file, and looks after nobody meanwhile."""
    over = "select a.id from views.v{0} a join views.w{0} b on b.id = a.id"
    sqls = {f"{side}{n}": over.format(n - 1) if n else "select id from orders" for n in range(20) for side in "vw"}
    said = said_of_views(
        settings(tmp_path, "".join(f'[views.{name}]\nsql = "{sql}"\nkey = ["id"]\n' for name, sql in sqls.items()))
    )
    assert [len(json.loads(said[name])) for name in ("v0", "v1", "w19")] == [1, 3, 39]


NESTED = """
[views.order]
root = "public.orders"
key = ["id"]
exclude = ["note"]
computed = { twice = "customer * 2" }
rename = { customer = "who.id" }
where = "customer > 0"
batch_rows = 7
[views.order.many.others]
table = "public.orders"
on = { customer = "customer" }
order = ["note COLLATE \\"C\\" DESC", "id"]
columns = ["id"]
totals = { n = "count(*)" }
[views.order.many.others.one.customer]
table = "public.customers"
on = { customer = "id" }
columns = ["name"]
as = { name = "text" }
"""


def test_a_definition_is_kept_whole_and_read_again(tmp_path: Path) -> None:
    """As JSON, as a state keeps it; the view of it is the same."""
    found = declared_views(settings(tmp_path, f'[views.joined]\nsql = "{SQL}"\nkey = ["id"]\n{NESTED}'))
    for view in found.values():
        again = view.former(json.loads(json.dumps(view.definition)))
        assert again is not None
        assert (again.declaration, again.topics, again.definition) == (view.declaration, view.topics, view.definition)
        assert "batch_rows" not in view.definition
        assert view.former({**view.definition, "unknown": 1}) is None
        assert view.former({}) is None


def test_a_former_definition_that_would_make_a_circle_now_is_not_followed(tmp_path: Path) -> None:
    sql = "select id from {}"
    before = declared_views(
        settings(
            tmp_path,
            f'[views.a]\nsql = "{sql.format("views.b")}"\nkey = ["id"]\n[views.b]\nsql = "{sql.format("t")}"\nkey = ["id"]\n',
        )
    )
    after = declared_views(
        settings(
            tmp_path,
            f'[views.a]\nsql = "{sql.format("t")}"\nkey = ["id"]\n[views.b]\nsql = "{sql.format("views.a")}"\nkey = ["id"]\n',
        )
    )
    assert after["a"].former(before["a"].definition) is None
    assert after["b"].former(before["b"].definition) is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[views.Big]\nsql = "select 1"\nkey = ["id"]\n', "views.Big: a view's name holds small letters"),
        ('[views.v]\nsql = " "\nkey = ["id"]\n', "views.v.sql: is empty"),
        ('[views.v]\nsql = "select 1"\nkey = []\n', "views.v.key: is empty"),
        ('[views.v]\nsql = "select 1"\nkey = ["a", "a"]\n', "views.v.key: names a twice"),
        ('[views.v]\nsql = "select 1"\nkey = ["a"]\nkeys = 1\n', "views.v.keys: unknown key"),
        ('[views.v]\nkey = ["a"]\n', "views.v: has neither sql nor root"),
        ('[views.v]\nsql = "select 1"\nkey = ["a"]\nby = ["a"]\n', "views.v: by belongs to a view with python"),
        ('[views.v]\nsql = "select 1"\nkey = ["a"]\nversion = "2"\n', "views.v: version belongs to a view with python"),
        (CALLED.replace("m:f", "m.f"), "views.v.python: 'm.f' is not module:function, such as shop.scores:score"),
        (CALLED.replace('sql = "select 1"', 'root = "public.t"'), "views.v: has python and no sql"),
        (CALLED.replace('by = ["a"]\n', ""), "views.v: has python and no by"),
        (CALLED.replace('by = ["a"]', "by = []"), "views.v.by: is empty"),
        (CALLED.replace("returns =", "#"), "views.v: has python and no returns"),
        (CALLED.replace("{ b", '{ a = "int", b'), "views.v: returns names a, which is of by"),
        (CALLED.replace('key = ["a", "b"]', 'key = ["b"]'), "views.v: key does not name a, which is of by"),
        (CALLED.replace('key = ["a", "b"]', 'key = ["a", "c"]'), "views.v: key names c, which is neither of by nor of returns"),
        (CALLED + 'where = "true"\n', "views.v: where belongs to a view with root"),
        ('[stores.s]\nkind = "console"\nviews = ["ordr"]\n[views.order]\nsql = "select 1"\nkey = ["a"]\n', "there is no view ordr"),
    ],
)
def test_what_cannot_be_a_view_is_refused_with_its_key(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        settings(tmp_path, text)


def test_a_table_cannot_have_a_views_name(tmp_path: Path) -> None:
    file = tmp_path / "cdc.toml"
    file.touch(0o600)
    file.write_text('[source]\ndsn = "dbname=shop"\ntables = ["views.v"]\n[views.v]\nsql = "select 1"\nkey = ["a"]\n')
    with pytest.raises(SettingsError, match=r"source\.tables names views\.v"):
        load(file, options_model)


def test_a_text_that_is_no_query_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"views\.v\.sql: .*line 1"):
        declared_views(settings(tmp_path, '[views.v]\nsql = "select id frm t"\nkey = ["id"]\n'))


def test_a_store_holds_the_views_that_it_names_beside_its_tables(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        '[stores.both]\nkind = "console"\ntables = ["public.*"]\nviews = ["v"]\n[stores.alone]\nkind = "console"\nviews = ["v"]\n'
        '[views.v]\nsql = "select 1"\nkey = ["a"]\n',
    )
    assert found.stores["both"].tables == ("public.*", "views.v")
    assert found.stores["alone"].tables == ("views.v",)
    assert "!views.v" in found.source.tables


def test_the_kernel_of_sql_keeps_its_view_through_restarts(tmp_path: Path, seed: int) -> None:
    dice = Random(seed)
    view = declared_views(settings(tmp_path, f'[views.joined]\nsql = "{SQL}"\nkey = ["id"]\n'))["joined"]
    with bed_in(tmp_path) as bed:
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": "Ann"}]), (ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        for _ in range(2):
            with bed.runner(view) as runner:
                runner.begin()
                assert bed.shown() == bed.expected(VIEW)
                for _ in range(3):
                    bed.traffic(dice)
                    bed.keep_up(runner)
                    assert bed.shown() == bed.expected(VIEW)
                why = runner.why
        assert why == ""


def test_a_state_whose_rows_are_damaged_is_computed_again_where_it_is_noticed(tmp_path: Path) -> None:
    """The state opens, as its first pages are whole: once each process after another ended at the page that is not."""
    view = declared_views(settings(tmp_path, f'[views.joined]\nsql = "{SQL}"\nkey = ["id"]\n'))["joined"]
    with bed_in(tmp_path) as bed:
        customers = [{"id": number, "name": f"name {number}"} for number in range(300)]
        orders = [{"id": number, "customer": number, "note": "padding " * 40} for number in range(300)]
        bed.commit((CUSTOMERS, Op.INSERT, customers), (ORDERS, Op.INSERT, orders))
        with bed.runner(view) as runner:
            runner.begin()
        [file] = tmp_path.rglob("state.sqlite")
        pages = file.read_bytes()
        assert b"padding" in pages
        file.write_bytes(
            b"".join(
                bytes(4096) if b"padding" in pages[at : at + 4096] else pages[at : at + 4096] for at in range(0, len(pages), 4096)
            )
        )
        with bed.runner(view) as runner:
            runner.begin()
            assert runner.why == "", "the damage is to be noticed later than that"
            bed.commit((CUSTOMERS, Op.UPDATE, [{"id": number, "name": "other"} for number in range(300)]))
            bed.keep_up(runner)
            assert runner.why == "its state cannot be read"
            assert bed.shown() == bed.expected(VIEW)
            bed.commit((CUSTOMERS, Op.UPDATE, [{"id": 1, "name": "again"}]))
            bed.keep_up(runner)
            assert bed.shown() == bed.expected(VIEW)


def test_a_table_that_is_altered_while_the_next_generation_is_built(tmp_path: Path) -> None:
    """Before it is loaded, and later: it begins again with the table as it is."""
    text = '[views.joined]\nsql = "{}"\nkey = ["id"]\n'
    former, other = (
        declared_views(settings(tmp_path, text.format(sql)))["joined"]
        for sql in ("select id, note from orders", "select id, note from orders where id > 1")
    )
    with bed_in(tmp_path) as bed:
        bed.commit((ORDERS, Op.INSERT, [{"id": number, "customer": 1, "note": "a"} for number in range(4)]))
        with bed.runner(former) as runner:
            runner.begin()
        with bed.runner(other, limits=StepLimits(rows=2)) as runner:
            runner.begin()
            for slices in range(3):
                for _ in range(slices):
                    runner.build()
                bed.commit((bed.alter(100 + slices), Op.UPDATE, [{"id": 3, "customer": 1, "note": f"b{slices}"}]))
            bed.keep_up(runner)
            assert bed.shown() == {2: {"id": 2, "note": "a"}, 3: {"id": 3, "note": "b2"}}


@pytest.mark.parametrize("rows", [0, 3])
def test_a_column_that_comes_or_goes_does_so_in_the_topic_though_no_row_differs(tmp_path: Path, rows: int) -> None:
    texts = ("select id, customer, note from orders", "select id, note from orders", "select id, customer, note from orders")
    with bed_in(tmp_path) as bed:
        bed.commit((ORDERS, Op.INSERT, [{"id": number, "customer": 1, "note": "a"} for number in range(rows + 1)]))
        bed.commit((ORDERS, Op.DELETE, [{"id": rows}]))
        for number, sql in enumerate(texts):
            view = declared_views(settings(tmp_path, f'[views.joined]\nsql = "{sql}"\nkey = ["id"]\n'))["joined"]
            with bed.runner(view) as runner:
                runner.begin()
                bed.keep_up(runner)
            [topic] = [one for one in bed.reader.topics() if one.name == "views.joined"]
            wanted = ["id", "note"] if number == 1 else ["id", "customer", "note"]
            assert list(topic.schema.names) == wanted
            assert [sorted(row) for row in bed.shown().values()] == [sorted(wanted)] * rows


def test_views_of_views_that_all_change_go_over_one_after_the_other(tmp_path: Path) -> None:
    """Each shows a column that the one below it has only once that has gone over."""
    text = "\n".join(f'[views.{name}]\nsql = "select id, {{0}} from {below}"\nkey = ["id"]' for name, below in BELOW.items())
    former, now = (declared_views(settings(tmp_path, text.format(column))) for column in ("note", "customer"))
    with bed_in(tmp_path) as bed, ExitStack() as stack:

        def runners(views: Mapping[str, SqlView]) -> list[ViewRunner]:
            return [stack.enter_context(bed.runner(views[name], name=name)) for name in reversed(BELOW)]

        bed.commit((ORDERS, Op.INSERT, [{"id": 1, "customer": 5, "note": "a"}]))
        for one in reversed(runners(former)):
            one.begin()
        stack.close()
        found = runners(now)
        for one in found:
            one.begin()
        bed.commit((ORDERS, Op.INSERT, [{"id": 2, "customer": 6, "note": "b"}]))
        for _ in range(100):  # whatever waits looks again after a while
            for one in found:
                bed.keep_up(one)
        for name in BELOW:
            assert bed.shown(f"views.{name}") == {number: {"id": number, "customer": number + 4} for number in (1, 2)}


def test_a_column_that_a_table_shows_with_another_type_has_it_in_the_view_too(tmp_path: Path) -> None:
    text = '[views.joined]\nsql = "select id, note from orders"\nkey = ["id"]\n'
    view = declared_views(settings(tmp_path, text))["joined"]
    *others, note = ORDERS.columns
    numbers = replace(ORDERS, columns=(*others, replace(note, type_oid=INT8)))
    with bed_in(tmp_path) as bed:
        bed.commit((ORDERS, Op.INSERT, [{"id": number, "customer": 1, "note": "a"} for number in range(4)]))
        with bed.runner(view) as runner:
            runner.begin()
            change = SchemaChange(numbers, Kind.REWRITTEN, empties=True)
            bed.writer.append(schema_record(change, bed.writer.next_position, bed.lsn, bed.lsn))
            bed.commit((numbers, Op.INSERT, [{"id": number, "customer": 1, "note": number} for number in range(3)]))
            bed.keep_up(runner)
            assert bed.shown() == {number: {"id": number, "note": number} for number in range(3)}


def test_plan_says_how_a_view_goes_over(tmp_path: Path) -> None:
    text = 'run_dir = "run"\n[log]\ndir = "log"\n[views.joined]\nsql = "{}"\nkey = ["id"]\n'
    former, other = (text.format(sql) for sql in ("select id, note from orders", "select id, note from orders where id > 1"))

    def said(now: str) -> str:
        [(name, what)] = redefined(settings(tmp_path, now), bed.reader)
        assert name == "joined"
        return what

    with bed_in(tmp_path) as bed:
        bed.commit((ORDERS, Op.INSERT, [{"id": number, "customer": 1, "note": "a"} for number in range(4)]))
        for now, then, how in (
            (former, other, "is computed again beside the live one"),
            (other, former, "the state that was kept of this"),
        ):
            found = settings(tmp_path, now)
            view = declared_views(found)["joined"]
            with bed.runner(view, "log/views") as runner:
                runner.begin()
                bed.keep_up(runner)
            status.write(found.run_dir, status.view_part("joined"), status.ViewStatus("joined", 1, declaration=view.declaration))
            assert how in said(then)
        retyped = text.format("select id, customer as note from orders")
        assert said(retyped).endswith("; column note is bigint, in the topic it is text, so that all of its rows come again")
        refused = text.format("select id, nothing from orders")
        assert "its next generation is refused (VIEW_REFUSED), and the live one goes on, at the next start" in said(refused)
        assert "line 1, column 12" in said(refused)
        view = declared_views(settings(tmp_path, refused))["joined"]
        with bed.runner(view, "log/views") as runner:
            runner.begin()
        status.write(bed.folder / "run", status.view_part("joined"), status.ViewStatus("joined", 1, declaration=view.declaration))
        assert said(refused).startswith("its next generation is refused: VIEW_REFUSED: view joined, line 1, column 12")


def test_a_column_that_a_view_reads_and_that_is_gone_stops_it_by_name(tmp_path: Path) -> None:
    text = '[views.joined]\nsql = "select id, nothing from public.orders"\nkey = ["id"]\n'
    view = declared_views(settings(tmp_path, text))["joined"]
    with bed_in(tmp_path) as bed:
        bed.commit((ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        with bed.runner(view) as runner, pytest.raises(Stopped, match=r"VIEW_REFUSED: view joined, line 1, column 12: .*nothing"):
            runner.begin()
