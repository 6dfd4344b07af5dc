"""``cdc.toml`` → ``cdc.settings.models``. Unknown keys are refused with a suggestion; secrets come from ${ENV} or ``*_file``.

``${NAME}`` in a value stands for the environment's variable (``$${`` is a plain ``${``). Inside a URL its value is percent-encoded, and
inside the DSN's ``name=value`` notation it is escaped, so that a password may hold any character and can add no option.
``KEY_file`` beside a secret key names a file with its value; only its owner may have rights on that file, and on ``cdc.toml`` itself
where a secret stands in it as it is.
Relative paths are relative to the folder of ``cdc.toml``.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from cdc.errors import ConfigError, HeadwaterError
from cdc.settings.implications import with_implied
from cdc.settings.interpolation import holds_secret, interpolate
from cdc.settings.models import Settings, StoreOptions
from cdc.settings.refusals import refusals
from cdc.settings.secretfile import MAX_FILE_BYTES, SecretFile, is_secret, may_be_a_file, texts_in

STORE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""Store names become file, index and key names."""
_ADDRESSES: Final = ("dsn", "url")
"""Secret keys that hold more than the secret."""

_Model = TypeVar("_Model", bound=BaseModel)
_At = tuple[str | int, ...]


class SettingsError(ConfigError):
    """Everything that is wrong with one configuration file, one ConfigError for each problem."""

    def __init__(self, problems: list[ConfigError]) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}", hint=problems[0].hint)
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """The content of a configuration file."""

    text: str
    private: bool = True
    """Nobody but its owner has rights on the file."""


def load(path: Path, options_model: Callable[[str], type[StoreOptions]], *, written: WrittenFile | None = None) -> Settings:
    """The settings that the file describes.

    written: what it says, or said; read from it when left out.
    options_model: the model of the options of one kind of store; raises a HeadwaterError for a kind that does not exist.
    Raises SettingsError with one line for each problem, naming file and key; never a value.
    """
    written = written or read(path)
    said = _parsed(path, written.text)
    loading = _LoadingFile(path, written.private)
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
    settings = settings.model_copy(update={"stores": options})
    for refusal in refusals(settings):
        loading.problem(refusal.at, refusal.what, hint=refusal.hint)
    if loading.problems:
        raise SettingsError(loading.problems)
    placed = {name: one if one is None else one.beside(settings.log.dir) for name, one in options.items()}
    return with_implied(settings.model_copy(update={"stores": placed}))


class _LoadingFile:
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
            inner = _inner_model(field.annotation) if field is not None else None
            if inner is not None and isinstance(value, dict):
                self.refuse_readable(inner, value, (*at, key))
            elif field is None or not is_secret(field.annotation):
                continue
            elif any(holds_secret(text, address=key in _ADDRESSES) for text in texts_in(value)):
                what = "others may read the file, and a secret stands in it"
                self.problem(
                    (*at, key), what, hint=f"chmod 600 {self.path}; or write ${{NAME}} for the secret{_or_a_file(key, field)}"
                )

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
        try:
            model = options_model(kind if isinstance(kind, str) else "")
        except HeadwaterError as error:
            self.problem((*at, "kind"), str(error) if isinstance(kind, str) else "is missing", hint=error.hint)
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
            self.problem(where, "unknown key", hint=_suggestion(_model_at(model, loc[:-1]), str(loc[-1])))
        elif kind == "missing":
            self.problem(where, "is missing")
        elif kind in ("model_type", "dict_type", "mapping_type"):
            self.problem(where, f"must be a table: [{_key(where)}]")
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
            inner = _inner_model(model.model_fields[key].annotation) if key in model.model_fields else None
            if key not in model.model_fields and secret != key and field is not None and may_be_a_file(field.annotation):
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
            with open(path, encoding="utf-8") as file:
                found = os.fstat(file.fileno())
                text = file.read(MAX_FILE_BYTES + 1)
        except (OSError, UnicodeDecodeError) as error:
            self.problem(at, f"cannot read {path}: {_why(error)}")
            return SecretStr("")
        if _open_to_others(found):
            self.problem(at, f"others may read {path}", hint=f"chmod 0400 {path}")
        if len(text) > MAX_FILE_BYTES:
            self.problem(at, f"{path} is too long for a secret")
        return SecretFile(text.rstrip("\r\n"), path)


def _open_to_others(file: os.stat_result) -> bool:
    """Postgres's rule for its private key: what is ours nobody else may read; what is root's a group may, since systemd (LoadCredential=) and
    Kubernetes (fsGroup) give secrets in this way to a service that is not root."""
    roots = file.st_uid == 0 and os.geteuid() != 0
    return bool(stat.S_IMODE(file.st_mode) & (0o037 if roots else 0o077))


def read(path: Path) -> WrittenFile:
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
        return WrittenFile(content.decode(), private)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None


_TABLES_TWICE: Final = "beside [stores.NAME.tables.…], what tables = [...] says is select = [...] in [stores.NAME.tables]"


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = _TABLES_TWICE if "'tables', " in str(error) else None
        raise ConfigError(f"{path} is not valid TOML: {error}", hint=hint) from None
    except (RecursionError, ValueError):
        raise ConfigError(f"{path} is not valid TOML: nested too deep, or a number of too many digits") from None


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


# --- what the models have, for messages about a key that does not exist ------------------------------------------------------


def _suggestion(model: type[BaseModel] | None, key: str) -> str | None:
    if model is None:
        return None
    known = list(_keys(model))
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"


def _keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name
        if may_be_a_file(field.annotation):
            yield f"{name}_file"


def _model_at(model: type[BaseModel], loc: _At) -> type[BaseModel] | None:
    """The model that validates the table at this place, None below anything that is not a model."""
    found: type[BaseModel] | None = model
    for step in loc:
        if found is None:
            return None
        if not isinstance(step, str):
            continue
        field = next((field for name, field in found.model_fields.items() if step == (field.alias or name)), None)
        if field is not None:
            found = _inner_model(field.annotation) or found
        elif found.model_config.get("extra") == "allow":
            found = _inner_model(get_type_hints(found)["__pydantic_extra__"]) or found
    return found


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model in ``Model``, ``Model | None``, ``tuple[Model, ...]`` or ``Mapping[str, Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_inner_model, get_args(annotation)) if model is not None), None)


def _or_a_file(key: str, field: FieldInfo) -> str:
    return f", or {key}_file" if may_be_a_file(field.annotation) else ""
