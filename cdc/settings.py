"""``cdc.toml`` as typed values. Unknown keys are refused with a suggestion; secrets come from ${ENV} or ``*_file``.

``${NAME}`` in a value stands for the environment's variable (``$${`` is a plain ``${``). Inside a URL its value is percent-encoded, and
inside the DSN's ``name=value`` notation it is escaped, so that a password may hold any character and can add no option.
``KEY_file`` beside a secret key names a file with its value; only its owner may have rights on that file, and on ``cdc.toml`` itself
where a secret stands in it as it is.
Relative paths are relative to the folder of ``cdc.toml``.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from cdc.errors import ConfigError, HeadwaterError
from cdc.interpolation import holds_secret, interpolate
from cdc.model.selection import matches, named
from cdc.model.showing import As, AsRules
from cdc.modelkeys import inner_model, is_secret, model_at, suggestion

MAX_FILE_BYTES: Final = 1 << 20
"""Nobody writes a longer configuration by hand."""
STORE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""Store names become file, index and key names."""

_ADDRESSES: Final = ("dsn", "url")
"""Secret keys that hold more than the secret."""

_log = structlog.get_logger("settings")
_Model = TypeVar("_Model", bound=BaseModel)
_At = tuple[str | int, ...]


class Strict(BaseModel):
    """Base of every settings model: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _select_something(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if all(pattern.startswith("!") for pattern in patterns):
        why = "every pattern in it only takes tables out" if patterns else "it is empty"
        raise ValueError(f'selects no table: {why}; write a pattern such as "public.*" first')
    return patterns


Patterns = Annotated[tuple[str, ...], AfterValidator(_select_something)]
"""Of ``schema.table`` (``cdc.model.selection``)."""
ColumnPolicy = Literal["keep", "drop", "mask", "hmac", "encrypt"]
"""What of a column's values may reach the log (``cdc.privacy``)."""


class Privacy(Strict):
    key: SecretStr | None = None
    """What the hmac and encrypt policies derive their keys from; at least 32 bytes."""
    strict: bool = False
    """Every column of a captured table has to be named in ``source.columns``; capture stops where one is not."""


class SecretFile(SecretStr):
    """A secret that stands in a file. It is read again each time it is asked for, so that a rotated password counts from the next
    connection on; while the file cannot be read, the last one that could counts, which is said once."""

    def __init__(self, secret: str, path: Path) -> None:
        super().__init__(secret)
        self._path = path
        self._problem: str | None = None

    def get_secret_value(self) -> str:
        problem = None
        try:
            with open(self._path) as file:
                text = file.read(MAX_FILE_BYTES + 1)
        except (OSError, UnicodeDecodeError) as error:
            problem = getattr(error, "strerror", None) or "it is not text"
        else:
            if text and len(text) <= MAX_FILE_BYTES:
                self._secret_value = text.rstrip("\r\n")
            else:
                problem = "it is too long" if text else "it is empty"
        if problem not in (None, self._problem):
            hint = f"make it readable for this account again: {self._path}"
            _log.warning(
                "a secret's file cannot be read, so the last secret counts", file=str(self._path), problem=problem, mend=hint
            )
        self._problem = problem
        return self._secret_value


class Source(Strict):
    dsn: SecretStr
    tables: Patterns = ("public.*",)
    slot: str = "cdc"
    publication: str = Field("cdc", min_length=1, max_length=63)
    failover: bool = True
    """A slot that is made here can be synchronised to standbys (where the server has that, from 17 on), so that capture goes on after
    a failover."""
    streaming: bool = True
    """Large transactions are received while they run, into a spool beside the log, so that their commit is near when they end."""
    two_phase: bool = False
    """Prepared transactions are received at PREPARE instead of COMMIT PREPARED; visible at COMMIT PREPARED either way."""
    columns: Mapping[str, Mapping[str, ColumnPolicy]] = {}
    """``schema.table`` → column → what of its values may reach the log."""
    snapshot_chunk_rows: int = Field(50_000, ge=1)
    """So many rows of a table enter the stream at once."""
    snapshot_workers: int = Field(2, ge=1, le=32)
    """Connections that read tables, or parts of one, at the same time."""
    snapshot_rows_per_s: int | None = Field(None, ge=1)
    """At most so many rows are read; as many as it takes when left out."""
    snapshot_pause_lag_mb: int = Field(1024, ge=1)
    """While the log is farther behind the server than this, nothing is read."""

    @field_validator("slot")
    @classmethod
    def _is_a_slot_name(cls, name: str) -> str:
        if re.fullmatch("[a-z0-9_]{1,63}", name) is None:
            raise ValueError("a slot's name holds lower-case letters, digits and _ only, at most 63 of them")
        return name

    @model_validator(mode="after")
    def _nothing_unprotected_is_kept(self) -> Self:
        if self.two_phase and self.columns:
            # Prepared transactions are kept as they came, so before column policies apply.
            raise ValueError(
                "two_phase cannot stand together with source.columns: what is prepared is kept on disk as it came, before any policy; "
                "leave two_phase out, and prepared transactions come at COMMIT PREPARED"
            )
        return self


class Log(Strict):
    dir: Path = Path("var/log")
    segment_bytes: int = Field(64 * 2**20, ge=4096)
    """An Arrow segment that has grown to this size is closed and sealed to Parquet."""
    cleanup: Literal["keep"] = "keep"


class Http(Strict):
    listen: str = "127.0.0.1:8642"
    """host:port. Any other address than loopback needs ``token``, ``tls_cert`` and ``tls_key``."""
    token: SecretStr | None = None
    """What clients send as ``Authorization: Bearer …``."""
    tls_cert: Path | None = None
    """PEM: the server's certificate and its chain."""
    tls_key: Path | None = None
    hosts: tuple[str, ...] = ()
    """Further names under which a browser may reach the port, such as a proxy's."""

    @field_validator("listen")
    @classmethod
    def _is_an_address(cls, listen: str) -> str:
        host, colon, port = listen.rpartition(":")
        if not colon or not host.removeprefix("[").removesuffix("]") or not port.isdecimal() or int(port) > 65535:
            raise ValueError("no address; write host:port, such as 127.0.0.1:8642")
        return listen


SchemaPolicy = Literal["apply", "pause", "ignore"]
"""What a store does when a table's definition changes: follow it, wait for an operator, or go on in the former shape."""


class Contract(Strict):
    """What the readers of one table's stores rely on."""

    require: tuple[str, ...]
    """Columns without which a store stops before the change that takes one away."""


class TableOptions(Strict):
    """``[stores.NAME.tables."schema.table"]``: what a store makes of one table (* and ? match)."""

    as_: Mapping[str, As] = Field({}, alias="as")
    """Column → how the store shows it."""


class StoreTables(Strict):
    """``tables`` of a store: a list of patterns; or a table, whose ``select`` is that list and whose other keys are tables with options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, TableOptions] = Field(init=False)

    select: Patterns = ("*",)

    @model_validator(mode="before")
    @classmethod
    def _is_a_list_for_short(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw if isinstance(raw, StoreTables) else {"select": raw}
        for key in raw:
            if key != "select" and "." not in str(key):
                raise ValueError(f"{key} is neither `select` nor a table, which is written schema.table")
        return raw

    @model_validator(mode="after")
    def _options_are_of_tables_that_are_held(self) -> Self:
        for pattern in self.options:
            if named((pattern,)) and not matches(self.select, pattern):
                raise ValueError(f"{pattern} has options here, and is no table of this store; add it to tables.select")
        return self

    @property
    def options(self) -> Mapping[str, TableOptions]:
        return self.__pydantic_extra__ or {}


class StoreOptions(Strict):
    """What every store's options have; each sink's own model extends it."""

    renders: ClassVar[bool] = False
    """Whether the store makes JSON of values, so that a column may be shown in another way."""

    kind: str
    held: StoreTables = Field(StoreTables(), alias="tables")
    batch_rows: int = Field(200_000, ge=1)
    batch_bytes: int = Field(64 * 2**20, ge=1)
    workers_from_rows: int = Field(20_000, ge=0)
    """Ranges of at least so many rows are applied by Spark's workers where the store takes several writers; 0: never.

    Shipping work to them costs about 90 ms, so it pays only for ranges that take longer than that."""
    schema_policy: SchemaPolicy = Field("apply", alias="schema")
    schema_for: Mapping[str, SchemaPolicy] = {}
    """The same for single tables (schema.table, * and ? match); the last that matches decides."""

    @model_validator(mode="after")
    def _only_what_it_can(self) -> Self:
        if not self.renders and self.as_rules:
            raise ValueError(f"a store of kind {self.kind} holds the types of the database: it knows no `as`")
        return self

    @property
    def tables(self) -> Patterns:
        """The patterns of the tables that the store holds."""
        return self.held.select

    @property
    def as_rules(self) -> AsRules:
        """How this store shows columns, by patterns of tables."""
        return tuple((pattern, options.as_) for pattern, options in self.held.options.items() if options.as_)

    def policy(self, table: str) -> SchemaPolicy:
        """What this store does when the table (``schema.table``) changes."""
        found = self.schema_policy
        for pattern, policy in self.schema_for.items():
            if matches((pattern,), table):
                found = policy
        return found


class Settings(Strict):
    source: Source
    log: Log = Log()
    stores: Mapping[str, StoreOptions] = {}
    contracts: Mapping[str, Contract] = {}
    """By table (``schema.table``); counts for every store that holds the table."""
    privacy: Privacy = Privacy()
    http: Http = Http()
    run_dir: Path = Path("var/run")
    """Status files, Spark's scratch space, stop states: what one machine's processes tell each other."""


class SettingsError(ConfigError):
    """Everything that is wrong with one configuration file, one ConfigError for each problem."""

    def __init__(self, problems: list[ConfigError]) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}", hint=problems[0].hint)
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Written:
    """What a configuration file says."""

    text: str
    private: bool = True
    """Nobody but its owner has rights on the file."""


def load(path: Path, options_model: Callable[[str], type[StoreOptions]], *, written: Written | None = None) -> Settings:
    """The settings that the file describes.

    written: what it says, or said; read from it when left out.
    options_model: the model of the options of one kind of store; raises a HeadwaterError for a kind that does not exist.
    Raises SettingsError with one line for each problem, naming file and key; never a value.
    """
    written = written or read(path)
    said = _parsed(path, written.text)
    loading = _Loading(path, written.private)
    loading.refuse_readable(Settings, said, ())
    raw = loading.interpolated(said, ())
    stores = raw.pop("stores", {})
    if not isinstance(stores, dict):
        loading.problem(("stores",), "must be tables: [stores.NAME]")
        stores = {}
    options = {name: loading.store(name, table, said["stores"][name], options_model) for name, table in stores.items()}
    settings = loading.validated(Settings, raw, ())
    if loading.problems or settings is None:
        raise SettingsError(loading.problems)
    return settings.model_copy(update={"stores": options})


class _Loading:
    """One file on its way to Settings. Problems are collected, so that a user sees all of them at once."""

    def __init__(self, path: Path, private: bool) -> None:
        self.path = path
        self._private = private
        self.problems: list[ConfigError] = []

    def problem(self, at: _At, what: str, *, hint: str | None = None) -> None:
        self.problems.append(ConfigError(f"{self.path}: {_key(at)}: {what}", hint=hint))

    def interpolated(self, value: Any, at: _At) -> Any:
        """The value with every ${NAME} in its strings replaced."""
        if isinstance(value, dict):
            return {key: self.interpolated(inner, (*at, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.interpolated(inner, (*at, number)) for number, inner in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        try:
            return interpolate(value, os.environ, conninfo=at == ("source", "dsn"))
        except KeyError as error:
            name = error.args[0]
            self.problem(at, f"the environment has no variable {name}", hint=f"export {name}=…")
            return value

    def refuse_readable(self, model: type[BaseModel], written: Mapping[str, Any], at: _At) -> None:
        """A problem for each secret that stands in a file on which others have rights. written: before variables are replaced."""
        if self._private:
            return
        for key, value in written.items():
            field = model.model_fields.get(key)
            inner = inner_model(field.annotation) if field is not None else None
            if inner is not None and isinstance(value, dict):
                self.refuse_readable(inner, value, (*at, key))
            elif field is None or not is_secret(field) or not isinstance(value, str):
                continue
            elif holds_secret(value, address=key in _ADDRESSES):
                what = "others may read the file, and a secret stands in it"
                self.problem((*at, key), what, hint=f"chmod 600 {self.path}; or write ${{NAME}} for the secret, or {key}_file")

    def store(
        self, name: str, table: object, written: Mapping[str, Any], options_model: Callable[[str], type[StoreOptions]]
    ) -> StoreOptions | None:
        at = ("stores", name)
        if not STORE_NAME.fullmatch(name):
            self.problem(at, "a store's name holds lower-case letters, digits, _ and - only, at most 63 of them")
            return None
        if not isinstance(table, dict):
            self.problem(at, "must be a table: [stores.NAME]")
            return None
        kind = table.get("kind")
        if not isinstance(kind, str):
            self.problem((*at, "kind"), "is missing", hint='say which kind of store it is, such as kind = "redis"')
            return None
        try:
            model = options_model(kind)
        except HeadwaterError as error:
            self.problem((*at, "kind"), str(error), hint=error.hint)
            return None
        self.refuse_readable(model, written, at)
        return self.validated(model, table, at)

    def validated(self, model: type[_Model], raw: dict[str, Any], at: _At) -> _Model | None:
        """The model's instance with its paths resolved; None after problems."""
        before = len(self.problems)
        raw = self._with_secrets(model, raw, at)
        try:
            instance = model.model_validate(raw)
        except ValidationError as error:
            for detail in error.errors(include_input=False, include_url=False, include_context=False):
                self._invalid(model, at, detail["loc"], detail["type"], detail["msg"])
            return None
        return _resolved(instance, self.path.parent) if len(self.problems) == before else None

    def _invalid(self, model: type[BaseModel], at: _At, loc: _At, kind: str, message: str) -> None:
        # The list may be written without its name.
        where = (*at, *(loc[:-1] if loc[-2:] == ("tables", "select") else loc))
        if kind == "extra_forbidden":
            self.problem(where, "there is no such key", hint=suggestion(model_at(model, loc[:-1]), str(loc[-1])))
        elif kind == "missing":
            self.problem(where, "is missing")
        elif kind in ("tuple_type", "list_type"):
            self.problem(where, "should be a list", hint=f'write it in brackets: {where[-1]} = ["…"]')
        else:
            self.problem(
                where,
                message.removeprefix("Value error, ").removeprefix("Input ").replace(" for <class 'pathlib.Path'>", "").strip(),
            )

    def _with_secrets(self, model: type[BaseModel], raw: dict[str, Any], at: _At) -> dict[str, Any]:
        """KEY_file replaced by KEY, at any depth."""
        given: dict[str, Any] = {}
        for key, value in raw.items():
            secret = key.removesuffix("_file")
            field = model.model_fields.get(secret)
            inner = inner_model(model.model_fields[key].annotation) if key in model.model_fields else None
            if key not in model.model_fields and secret != key and field is not None and is_secret(field):
                if secret in raw:
                    self.problem((*at, key), f"give either {secret} or {key}, not both")
                given[secret] = self._secret((*at, key), value)
            elif inner is not None and isinstance(value, dict):
                given[key] = self._with_secrets(inner, value, (*at, key))
            else:
                given[key] = value
        return given

    def _secret(self, at: _At, value: object) -> SecretStr:
        if not isinstance(value, str):
            self.problem(at, "should be the path of a file")
            return SecretStr("")
        path = self.path.parent / value
        try:
            with open(path) as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(MAX_FILE_BYTES + 1)
        except (OSError, UnicodeDecodeError) as error:
            self.problem(at, f"cannot read {path}: {_why(error)}")
            return SecretStr("")
        if stat.S_IMODE(mode) & 0o077:
            self.problem(at, f"others may read {path}", hint=f"chmod 0400 {path}")
        if len(text) > MAX_FILE_BYTES:
            self.problem(at, f"{path} is too long for a secret")
        return SecretFile(text.rstrip("\r\n"), path)


def read(path: Path) -> Written:
    """Raises ConfigError when the file cannot be read."""
    try:
        with open(path, "rb") as file:
            private = not stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist", hint="cdc init writes one; --config names another") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {_why(error)}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is longer than {MAX_FILE_BYTES} bytes")
    try:
        return Written(content.decode(), private)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no valid TOML: {error}") from None
    except (RecursionError, ValueError):
        raise ConfigError(f"{path} is no valid TOML: nested too deep, or a number of too many digits") from None


def _resolved(instance: _Model, folder: Path) -> _Model:
    """The instance with relative paths made relative to the folder, at any depth."""
    changed: dict[str, Any] = {}
    for name in type(instance).model_fields:
        value = getattr(instance, name)
        if isinstance(value, Path) and not value.is_absolute():
            changed[name] = folder / value
        elif isinstance(value, BaseModel):
            changed[name] = _resolved(value, folder)
    return instance.model_copy(update=changed)


def _key(at: _At) -> str:
    text = ""
    for step in at:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _why(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or type(error).__name__).lower() if isinstance(error, OSError) else "it is not UTF-8 text"
