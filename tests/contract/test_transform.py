"""``transform`` in every kind of store: the store holds what the function has made of rows, and what an audit expects is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.model.batch import Op
from cdc.settings import functions
from tests.contract.labs import Lab
from tests.contract.rows import Row, batch
from tests.contract.test_holding import ROWS, TABLE, HeldStore, loaded

CODE = """
import pyarrow.compute as pc


def hidden(rows):
    for name in ("name", "cost"):
        if name in rows.schema.names:
            at = rows.schema.get_field_index(name)
            values = pc.utf8_upper(rows.column(name)) if name == "name" else pc.round(rows.column(name))
            rows = rows.set_column(at, rows.schema.field(at), values.cast(rows.schema.field(at).type))
    return rows
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "contract_rows.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "contract_rows", raising=False)
    monkeypatch.setattr(functions, "known", {})


SAID: dict[str, Any] = {"transform": "contract_rows:hidden", "transform_columns": ["name", "more"], "rename": {"name": "title"}}


def test_a_store_holds_what_the_function_makes_of_rows(lab: Lab) -> None:
    store = loaded(lab, **SAID)
    store.expect(TABLE, ROWS)
    changed: Row = {**ROWS[1], "name": "Bob"}
    store.feed(batch(TABLE, [(Op.UPDATE, 4, changed), (Op.DELETE, 5, ROWS[2])]))
    store.commit(5)
    store.expect(TABLE, [ROWS[0], changed])
    if not lab.readable:
        return
    held = store.log.held(store.log.topics()[0].schema)
    assert sorted(row["title"] for part in store.sink.scan(held) for row in part.to_pylist()) == ["ADA", "BOB"]
    for said in ({}, {**SAID, "transform_version": "2"}, {**SAID, "transform_columns": ["name"]}):
        with pytest.raises(ConfigError, match=r"transform is another, or another version of it|title"):
            HeldStore(lab, **said)
    HeldStore(lab, **SAID).expect(TABLE, [ROWS[0], changed])
