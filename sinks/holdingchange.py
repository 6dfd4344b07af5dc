"""Whether a store whose rows are of one holding goes on under the one that the configuration says now. Pure."""

from __future__ import annotations

from dataclasses import replace

from cdc.errors import ConfigError, StopState
from cdc.model.topic import TopicSchema
from sinks.formula import WHERE, formulas
from sinks.holding import Holding, wishes_of


def settled(store: str, topic: TopicSchema, former: Holding, wanted: Holding) -> Holding:
    """The holding that a store goes on with whose rows are of ``former``, where the configuration says ``wanted``. ``topic``: its newest definition.

    Raises ConfigError where they are not the same.
    """
    former = replace(former, keys_apart=wanted.keys_apart, store=store)
    if former.said == wanted.said:
        former.refuse_unmet(topic)
        return former
    columns, shape = _differ(topic, former, wanted), _differ_in_shape(topic, former, wanted)
    if (former.columns is None) == (wanted.columns is None) and not columns and not shape:
        former.refuse_unmet(topic)
        return former
    what = "; ".join([*columns, *shape]) or "columns that the table gets later are treated otherwise"
    raise ConfigError(
        f"store {store} holds {'another shape' if shape and not columns else f'other {_others(former, wanted)}'} of {topic.topic} "
        f"than cdc.toml says: {what}",
        hint=f"put it back; or cdc resume {StopState.STORE_REFUSES}:follow-{store} --rebuild, which builds the store again from "
        "the log; or fill a second store beside it",
    )


def _differ(topic: TopicSchema, former: Holding, wanted: Holding) -> list[str]:
    """The difference that the two make of this definition, in words."""
    before, after = (_places(one, topic) for one in (former, wanted))
    said = [f"{name} is held, and was not" for name in after if name not in before]
    said += [f"{name} was held, and is not" for name in before if name not in after]
    said += [f"{name} was {before[name]}, and is {after[name]}" for name in after if name in before and before[name] != after[name]]
    were, are = ({one.key: one for one in formulas(holding.where, holding.computed)} for holding in (former, wanted))
    said += [f"{key} is said, and was not" for key in are if key == WHERE and key not in were]
    said += [f"{key} was said, and is not" for key in were if key == WHERE and key not in are]
    said += [f"{key} is another expression" for key in are if key in were and are[key].meant != were[key].meant]
    named_before, named_after = ({one.column_name for one in holding.held(topic).key} for holding in (former, wanted))
    said += [f"places are named by {name}, and were not" for name in sorted(named_after - named_before)]
    said += [f"places were named by {name}, and are not" for name in sorted(named_before - named_after)]
    return said


def _differ_in_shape(topic: TopicSchema, former: Holding, wanted: Holding) -> list[str]:
    """The difference in the options that only the store's kind has, in words."""
    before, after = (_wished(one, topic) for one in (former, wanted))
    said = [f"{name} has other options" for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    before, after = dict(former.shaping), dict(wanted.shaping)
    said += ["transform is another, or another version of it"] if _calls(former) != _calls(wanted) else []
    return [*said, *(f"{name} is another" for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name))]


def _wished(holding: Holding, topic: TopicSchema) -> dict[str, str]:
    """By the columns' names at the source."""
    held = holding.held(topic)
    wishes = wishes_of(held)
    return {one.column_name: wishes[one.name] for one in held.fields if one.name in wishes}


def _others(former: Holding, wanted: Holding) -> str:
    """What of a table the two hold differently, at first sight."""
    rows = (former.where is None) != (wanted.where is None) or (
        former.where is not None and wanted.where is not None and former.where.meant != wanted.where.meant
    )
    return "rows" if rows else "columns"


def _places(holding: Holding, topic: TopicSchema) -> dict[str, str]:
    return {one.column_name: one.name for one in holding.held(topic).fields if one.shown}


def _calls(holding: Holding) -> tuple[object, ...]:
    return () if holding.transform is None else holding.transform.said
