"""The tables of docs/configuration.md, from the settings' models: a key's default is the field's, its meaning the text below the field.

``make docs`` writes them; a test fails while they are stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cdc.settings import schema
from cdc.settings.models import (
    Audit,
    Contract,
    Http,
    Log,
    LogTable,
    Privacy,
    Settings,
    Source,
    StoreOptions,
    StoreTables,
    TableOptions,
)
from cdc.settings.outbox import Outbox, OutboxColumns
from cdc.settings.relations import Many, One, Through
from cdc.settings.secretfile import may_be_a_file
from cdc.settings.sparkoptions import SparkOptions
from cdc.settings.tier import Tier
from cdc.settings.views import View
from sinks import FOR_TESTS, KINDS, options_model

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
SECTIONS: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("source", Source),
    ("log", Log),
    ("log.tier", Tier),
    ('log.tables."schema.table"', LogTable),
    ("outbox", Outbox),
    ("outbox.columns", OutboxColumns),
    ("views.NAME", View),
    ("views.NAME.one.FIELD", One),
    ("views.NAME.many.FIELD", Many),
    ("views.NAME.many.FIELD.through", Through),
    ("spark", SparkOptions),
    ("http", Http),
    ("audit", Audit),
    ("privacy", Privacy),
    ('contracts."schema.table"', Contract),
)
MIB: Final = 2**20


def parts() -> dict[str, str]:
    """The generated parts by name."""
    run_dir = row("run_dir", Settings.model_fields["run_dir"], meaning(Settings, "run_dir"))
    keys = [
        *(f"### `[{section}]`\n\n{table(model)}" for section, model in SECTIONS),
        "### Beside the sections\n\n" + _table([run_dir]),
        f"### `[stores.NAME]`, of every kind\n\n{table(StoreOptions)}",
        f'### `[stores.NAME.tables."schema.table"]`\n\n{table(TableOptions)}',
        *(
            f'### `[stores.NAME]` with `kind = "{kind}"`\n\n{_of_kind(kind)}{_of_sections(kind)}{_of_tables(kind)}'
            for kind in KINDS
            if kind not in FOR_TESTS
        ),
    ]
    return {"keys": "\n\n".join(keys)}


def _of_kind(kind: str) -> str:
    """The options that a kind of store has of its own, or gives another default."""
    model = options_model(kind)
    common = StoreOptions.model_fields
    own = [name for name, field in model.model_fields.items() if name not in common or repr(field) != repr(common[name])]
    own = [name for name in own if name != "held"]
    return table(model, own) if own else "Nothing of its own."


def _of_sections(kind: str) -> str:
    """The tables that only this kind of store has below its own."""
    fields = options_model(kind).model_fields
    own = [(name, one.annotation) for name, one in fields.items() if name not in StoreOptions.model_fields]
    models = ((name, one) for name, one in own if isinstance(one, type) and issubclass(one, BaseModel))
    return "".join(f"\n\nIn `[stores.NAME.{name}]`:\n\n{table(model)}" for name, model in models)


def table_options(kind: str) -> type[TableOptions]:
    """The options that a table has in a store of this kind."""
    tables = options_model(kind).model_fields["held"].annotation
    assert isinstance(tables, type)
    found: type[TableOptions] = get_args(get_type_hints(tables)["__pydantic_extra__"])[1]
    return found


def _of_tables(kind: str) -> str:
    """The options that only this kind of store has of a table, below its own."""
    model = table_options(kind)
    own = [name for name in model.model_fields if name not in TableOptions.model_fields]
    return f'\n\nIn `[stores.NAME.tables."schema.table"]`:\n\n{table(model, own)}' if own else ""


def table(model: type[BaseModel], names: Sequence[str] | None = None) -> str:
    """One line for each key."""
    return _table([row(name, model.model_fields[name], meaning(model, name)) for name in names or model.model_fields])


def _table(lines: Sequence[str]) -> str:
    return "\n".join(("| key | default | meaning |", "|---|---|---|", *lines))


def row(name: str, field: FieldInfo, text: str) -> str:
    secret = f" (or `{field.alias or name}_file`)" if may_be_a_file(field.annotation) else ""
    return f"| `{field.alias or name}`{secret} | {_default(field)} | {text}{_limits(field)} |"


def meaning(model: type[BaseModel], name: str) -> str:
    """The text below the field, for a table's cell."""
    return schema.meaning(model, name).replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "has to be given"
    if isinstance(value, StoreTables):
        value = value.select
    if value is None or value == {} or isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and value >= MIB and value % MIB == 0:
        return f"`{value}` ({value // MIB} MiB)"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{one}"' for one in value) + "]`"
    return f'`"{value}"`' if isinstance(value, str | Path) else f"`{value}`"


def _limits(field: FieldInfo) -> str:
    """The numbers that are accepted, where not every one is."""
    least = next((one.ge for one in field.metadata if hasattr(one, "ge")), None)
    most = next((one.le for one in field.metadata if hasattr(one, "le")), None)
    if least is None or (most is None and least in (0, 1)):
        return ""
    return f" At least {least:,}." if most is None else f" From {least:,} to {most:,}."
