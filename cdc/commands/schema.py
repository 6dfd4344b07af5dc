"""`cdc schema`: the JSON Schema of cdc.toml."""

from __future__ import annotations

from cdc.commands.output import say_lines


def schema() -> None:
    """Print the JSON Schema of cdc.toml, by which editors complete and check it."""
    import json

    from cdc.settings.schema import json_schema
    from sinks import FOR_TESTS, KINDS, options_model

    kinds = {kind: options_model(kind) for kind in KINDS if kind not in FOR_TESTS}
    say_lines(json.dumps(json_schema(kinds), indent=2, ensure_ascii=False) + "\n")
