"""Syntax → steps: which entry of the whitelist each operator and call is, by the types of what stands in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cdc.expressions import constants, decimals, objects, texts
from cdc.expressions.entry import WhitelistEntry, filled
from cdc.expressions.overloads import chosen_entry, spelled, unknown
from cdc.expressions.parser import BEFORE, CHANGED
from cdc.expressions.pgtype import (
    BOOL,
    INT4,
    INTEGERS,
    JSONB,
    NAMES,
    NUMBERS,
    NUMERIC,
    TEXT,
    UNKNOWN,
    PgType,
)
from cdc.expressions.plan import PlanStep
from cdc.expressions.refusal import PartRefused, near
from cdc.expressions.syntax import Array, Case, Cast, Collated, FunctionCall, Name, NumberLiteral, Operation, Quoted, Syntax, Truth
from cdc.expressions.term import Term, folded, number
from cdc.expressions.whitelist import CASTS, ENTRIES, WORDS_OF_FORMS


class Analyst:
    """Makes the steps of one expression over these columns."""

    def __init__(self, columns: Mapping[str, PgType]) -> None:
        self._columns = columns
        self.read: dict[str, str] = {}
        """The columns that the expression reads → what they are called in the steps."""
        self.steps: list[PlanStep] = []

    # --- what every syntax is

    def term(self, syntax: Syntax) -> Term:
        """The value of this syntax. Raises PartRefused."""
        match syntax:
            case Name(at, name):
                return self._column(at, name)
            case NumberLiteral(at, text):
                return number(at, text)
            case Quoted(at, text):
                return Term(at, UNKNOWN, constant=text)
            case Truth(at, value):
                return Term(at, BOOL, constant=value)
            case Operation():
                return self._operation(syntax)
            case FunctionCall(at, name, arguments):
                return self._call(at, name, arguments)
            case Case():
                return self._case(syntax)
            case Cast():
                return self._cast(syntax)
            case Collated(at, value):
                return replace(self._text(self.term(value), "COLLATE"), collated=True)
            case Array(at):
                raise PartRefused(at, "an array can only stand in = ANY (…), <> ALL (…) and array_position(…, x)")

    def boolean(self, syntax: Syntax, where: str) -> Term:
        term = self.term(syntax)
        if term.type is UNKNOWN:
            term = self.coerced(term, BOOL)
        if term.type.name != "bool":
            raise PartRefused(term.at, f"{where} takes booleans, and this is {_a(term.type)}")
        return term

    def _text(self, term: Term, where: str) -> Term:
        if term.type is UNKNOWN:
            term = self.coerced(term, TEXT)
        if term.type.name != "text":
            raise PartRefused(term.at, f"{where} takes texts, and this is {_a(term.type)}")
        return term

    def _column(self, at: int, name: str) -> Term:
        if (
            name not in self._columns
            and name.startswith((BEFORE, CHANGED))
            and not any(one.startswith(BEFORE) for one in self._columns)
        ):
            raise PartRefused(
                at, "there is no row before here: an expression sees one row's columns", "only `when` of a store of events sees it"
            )
        if name not in self._columns:
            raise PartRefused(
                at,
                f"column {name} does not exist",
                near(name, self._columns) or "the columns are those of the table, by their own names",
            )
        return Term(at, self._columns[name], self.read.setdefault(name, f"c{len(self.read)}"))

    # --- steps

    def _made(self, at: int, kind: PgType, sql: str, of: Sequence[Term], error: str = "") -> Term:
        """A term of SQL. ``error``: the SQL of its error, where it can fail; it may read the value."""
        number = len(self.steps)
        needs = tuple(dict.fromkeys(name for term in of for name in term.needs))
        name = f"v{number}"
        self.steps.append(PlanStep(name, needs, sql))
        if error:
            self.steps.append(PlanStep(f"e{number}", (*needs, name), error))
        collated = any(term.collated for term in of) and kind.name == "text"
        return Term(at, kind, name, f"e{number}" if error else "", collated=collated)

    def _kernel(self, at: int, kind: PgType, kernel: Any, of: Sequence[Term]) -> Term:
        number = len(self.steps)
        needs = tuple(dict.fromkeys(term.name for term in of if term.name))
        state = f"s{number}"
        self.steps.append(PlanStep(f"v{number}", needs, kernel=kernel, arguments=tuple(term.argument for term in of), state=state))
        before = [term.error for term in of if term.error]
        self.steps.append(PlanStep(f"e{number}", (*before, state), _first([*before, state])))
        return Term(at, kind, f"v{number}", f"e{number}", collated=any(term.collated for term in of) and kind.name == "text")

    def applied(self, at: int, entry: WhitelistEntry, of: Sequence[Term]) -> Term:
        """The entry's value of these arguments, which have its types."""
        if entry.kernel is not None:
            return self._kernel(at, entry.result, entry.kernel, of)
        arguments = [term.sql for term in of]
        errors = [term.error for term in of if term.error]
        absent = " OR ".join(f"{term.sql} IS NULL" for term in of if not term.is_constant or term.constant is None) or "false"
        if entry.errors:
            whens = " ".join(f"WHEN {condition} THEN '{state}'" for condition, state in entry.errors)
            errors.append(filled(f"CASE WHEN {absent} THEN NULL {whens} END", arguments, f"v{len(self.steps)}"))
        sql = f"CASE WHEN NOT ({absent}) THEN {entry.sql} END" if entry.lenient else entry.sql
        return self._made(at, entry.result, filled(sql, arguments), of, _first(errors))

    # --- operators and functions

    def _call(self, at: int, name: str, syntax: Sequence[Syntax]) -> Term:
        if name in WORDS_OF_FORMS:
            return self._form(at, name, syntax)
        if name not in ENTRIES:
            raise unknown(at, name)
        terms = [self.term(one) for one in syntax]
        return self.resolved(at, name, terms)

    def resolved(self, at: int, name: str, terms: Sequence[Term]) -> Term:
        """The entry of this name that takes these terms, applied to them."""
        entry = chosen_entry(at, name, terms)
        given = [
            replace(term, constant=entry.word, type=TEXT) if entry.word and not number else self.coerced(term, kind)
            for number, (term, kind) in enumerate(zip(terms, entry.arguments, strict=True))
        ]
        for place in entry.constants:
            if not given[place].is_constant:
                raise PartRefused(given[place].at, f"{spelled(name)} needs a constant here")
        if entry.collated and not any(term.collated for term in given):
            raise PartRefused(
                at,
                f"{spelled(name)} of texts depends on the database's collation",
                'write COLLATE "C" behind a text: (x COLLATE "C")',
            )
        if entry.given is not None:
            wrong = entry.given([term.constant if term.is_constant else None for term in given])
            if wrong:
                raise PartRefused(given[entry.constants[0]].at, wrong)
        if name == "like" and given[1].constant is not None:
            given[1] = replace(given[1], constant=texts.regular(given[1].constant))
        return self.applied(at, entry, given)

    def coerced(self, term: Term, kind: PgType) -> Term:
        """The term as one of this type, to which Postgres casts it by itself. Raises PartRefused for a constant that cannot be read as one."""
        if term.type is UNKNOWN:
            if term.constant is None:
                return replace(term, type=kind)
            try:
                return replace(term, type=kind, constant=constants.read(kind, term.constant))
            except ValueError as error:
                raise PartRefused(term.at, str(error)) from None
        if term.type.name == kind.name:
            return replace(term, type=kind)
        if term.is_constant:
            made = folded(term, kind)
            if made is not None:
                return made
        entry = _entry_of_cast(term.type, kind)
        if entry is None:
            raise PartRefused(term.at, f"{term.type} and {kind} do not meet in one type", "cast one of them")
        return self.applied(term.at, entry, [term])

    # --- SQL's own forms

    def _operation(self, syntax: Operation) -> Term:
        at, name, operands = syntax.at, syntax.name, syntax.operands
        match name:
            case "and" | "or":
                return self._logic(at, name, [self.boolean(one, name.upper()) for one in operands])
            case "not":
                term = self.boolean(operands[0], "NOT")
                return self._made(at, BOOL, f"NOT {term.sql}", [term], term.error)
            case "is null" | "is not null":
                term = self.term(operands[0])
                if term.type is UNKNOWN:
                    term = replace(term, type=TEXT)
                return self._made(at, BOOL, f"{term.sql} {name.upper()}", [term], term.error)
            case "is true" | "is not true" | "is false" | "is not false":
                term = self.boolean(operands[0], "IS")
                return self._made(at, BOOL, f"{term.sql} {_DISTINCT[name]}", [term], term.error)
            case "is distinct from" | "is not distinct from":
                return self._distinct(at, name, *(self.term(one) for one in operands))
            case "in":
                first, *items = (self.term(one) for one in operands)
                return self._among(at, first, items)
            case "between":
                value, low, high = (self.term(one) for one in operands)
                return self._logic(at, "and", [self.resolved(at, ">=", (value, low)), self.resolved(at, "<=", (value, high))])
            case "any =" | "all <>":
                if not isinstance(operands[1], Array):
                    raise PartRefused(
                        at, "ANY and ALL take an array that is written out", "write x = ANY (ARRAY['a', 'b']) or x IN ('a', 'b')"
                    )
                found = self._among(at, self.term(operands[0]), [self.term(one) for one in operands[1].items])
                return found if name == "any =" else self._made(at, BOOL, f"NOT {found.sql}", [found], found.error)
        if name.startswith(("any ", "all ")):
            raise PartRefused(at, f"{name.split()[1]} with {name.split()[0].upper()} is not possible", "only = ANY and <> ALL are")
        if name not in ENTRIES:
            raise unknown(at, name)
        return self.resolved(at, name, [self.term(one) for one in operands])

    def _logic(self, at: int, word: str, terms: Sequence[Term]) -> Term:
        """AND and OR. What stands behind the operand that decides is not computed, so it cannot fail."""
        decided = "false" if word == "and" else "true"
        sql = "(" + f" {word.upper()} ".join(term.sql for term in terms) + ")"
        return self._made(at, BOOL, sql, terms, _error_until(terms, f"= {decided}"))

    def _distinct(self, at: int, name: str, left: Term, right: Term) -> Term:
        equal = self.resolved(at, "=", (left, right))
        nulls = [f"{term.sql} IS NULL" for term in (left, right)]
        sql = f"(CASE WHEN {nulls[0]} OR {nulls[1]} THEN NOT ({nulls[0]} AND {nulls[1]}) ELSE NOT {equal.sql} END)"
        known = [replace(term, type=TEXT) if term.type is UNKNOWN else term for term in (left, right)]
        return self._made(at, BOOL, f"NOT {sql}" if " not " in name else sql, [equal, *known], equal.error)

    def _among(self, at: int, first: Term, items: Sequence[Term]) -> Term:
        kind = self._common(at, [first, *items])
        value, *rest = (self.coerced(term, kind) for term in (first, *items))
        equal = [self.resolved(at, "=", (value, item)) for item in rest]
        sql = "(" + " OR ".join(term.sql for term in equal) + ")"
        return self._made(at, BOOL, sql, equal, _first([term.error for term in equal if term.error]))

    def _case(self, syntax: Case) -> Term:
        conditions = [self.boolean(condition, "WHEN") for condition, _ in syntax.whens]
        results = [self.term(result) for _, result in syntax.whens] + [self.term(syntax.otherwise)]
        # Postgres looks at ELSE first when it finds the common type.
        kind = self._common(syntax.at, [results[-1], *results[:-1]])
        results = [self.coerced(term, kind) for term in results]
        pairs = list(zip(conditions, results[:-1], strict=True))
        sql = " ".join(f"WHEN {condition.sql} THEN {result.sql}" for condition, result in pairs)
        error = ""
        if any(term.error for term in (*conditions, *results)):
            whens = []
            for condition, result in pairs:
                if condition.error:
                    whens.append(f"WHEN {condition.error} IS NOT NULL THEN {condition.error}")
                whens.append(f"WHEN {condition.sql} THEN {result.error or 'NULL'}")
            error = f"CASE {' '.join(whens)} ELSE {results[-1].error or 'NULL'} END"
        return self._made(syntax.at, kind, f"CASE {sql} ELSE {results[-1].sql} END", [*conditions, *results], error)

    def _form(self, at: int, name: str, syntax: Sequence[Syntax]) -> Term:
        if name == "array_position":
            return self._position(at, syntax)
        if name == "jsonb_build_object":
            return self._object(at, syntax)
        terms = [self.term(one) for one in syntax]
        if not terms or (name == "nullif" and len(terms) != 2):
            raise PartRefused(at, f"{name} takes {'two' if name == 'nullif' else 'at least one'}")
        if name == "nullif":
            return self._nullif(at, *terms)
        kind = self._common(at, terms)
        terms = [self.coerced(term, kind) for term in terms]
        if name == "coalesce":
            return self._coalesce(at, kind, terms)
        found = terms[0]
        for term in terms[1:]:
            found = self._better(at, ">" if name == "greatest" else "<", found, term)
        return found

    def _object(self, at: int, syntax: Sequence[Syntax]) -> Term:
        if not syntax or len(syntax) % 2:
            raise PartRefused(at, "jsonb_build_object takes pairs of a name and a value", "write jsonb_build_object('id', id)")
        names: list[str] = []
        for one in syntax[::2]:
            if not isinstance(one, Quoted) or one.text is None:
                raise PartRefused(one.at, "a name of jsonb_build_object is a constant text", "write jsonb_build_object('id', id)")
            if one.text in names:
                raise PartRefused(one.at, f"{one.text} is a name of the object twice", "give one another name")
            names.append(one.text)
        values = [self.term(one) for one in syntax[1::2]]
        values = [self.coerced(one, TEXT) if one.type is UNKNOWN else one for one in values]
        for name, term in zip(names, values, strict=True):
            if term.type.name not in objects.SHOWN:
                raise PartRefused(term.at, f"{name} is {term.type}, which no jsonb is made of", "leave it out")
        return self._kernel(at, JSONB, objects.built(names, [one.type for one in values]), values)

    def _coalesce(self, at: int, kind: PgType, terms: Sequence[Term]) -> Term:
        sql = f"coalesce({', '.join(term.sql for term in terms)})"
        return self._made(at, kind, sql, terms, _error_until(terms, "IS NOT NULL"))

    def _better(self, at: int, sign: str, left: Term, right: Term) -> Term:
        """The one of two that is greater, or less; the other where one is NULL, and the first where they are equal."""
        ahead = self.resolved(at, sign, (right, left))
        sql = f"CASE WHEN {left.sql} IS NULL OR {ahead.sql} THEN {right.sql} ELSE {left.sql} END"
        sql = f"CASE WHEN {right.sql} IS NULL THEN {left.sql} ELSE {sql} END"
        return self._made(at, left.type, sql, [ahead, left, right], ahead.error)

    def _nullif(self, at: int, left: Term, right: Term) -> Term:
        kind = self._common(at, [left, right])
        both_whole = left.type in INTEGERS and right.type in INTEGERS
        value = left if both_whole else self.coerced(left, kind)
        equal = self.resolved(at, "=", (value, right if both_whole else self.coerced(right, kind)))
        sql = f"CASE WHEN {equal.sql} THEN NULL ELSE {value.sql} END"
        return self._made(at, value.type, sql, [equal, value], equal.error)

    def _position(self, at: int, syntax: Sequence[Syntax]) -> Term:
        if len(syntax) != 2 or not isinstance(syntax[0], Array):
            raise PartRefused(
                at, "array_position takes an array that is written out", "write array_position(ARRAY['new', 'paid'], status)"
            )
        terms = [self.term(one) for one in (*syntax[0].items, syntax[1])]
        kind = self._common(at, terms)
        *items, value = (self.coerced(term, kind) for term in terms)
        same = [self._distinct(at, "is not distinct from", item, value) for item in items]
        sql = " ".join(f"WHEN {term.sql} THEN {number}" for number, term in enumerate(same, 1))
        return self._made(at, INT4, f"CAST(CASE {sql} END AS INTEGER)", same, _first([term.error for term in same if term.error]))

    def _common(self, at: int, terms: Sequence[Term]) -> PgType:
        """The type in which these values meet (manual, "UNION, CASE, and Related Constructs")."""
        kinds = [term.type for term in terms if term.type is not UNKNOWN]
        if not kinds:
            return TEXT
        found = kinds[0]
        for kind in kinds[1:]:
            if kind.name == found.name:
                found = replace(found, bounds=None)
            elif found in NUMBERS or found.name == "numeric":
                if kind.name not in [one.name for one in NUMBERS]:
                    raise PartRefused(at, f"{found} and {kind} do not meet in one type", "cast one of them")
                ranks = [one.name for one in NUMBERS]
                found = replace(max(found, kind, key=lambda one: ranks.index(one.name)), bounds=None)
            else:
                raise PartRefused(at, f"{found} and {kind} do not meet in one type", "cast one of them")
        return replace(found, bounds=None) if len(kinds) > 1 or found.name == "numeric" else found

    # --- casts

    def _cast(self, syntax: Cast) -> Term:
        term = self.term(syntax.value)
        kind = NAMES.get(syntax.type_name)
        if kind is None:
            raise PartRefused(
                syntax.at,
                f"casts to {syntax.type_name} are not possible",
                f"possible are: {', '.join(sorted({str(one) for one in NAMES.values()}))}",
            )
        if syntax.modifiers and kind.name != "numeric":
            raise PartRefused(syntax.at, f"a length or precision of {kind} is not possible", "cast to the type alone")
        found = self._cast_to(syntax.at, term, kind)
        if not syntax.modifiers:
            return found
        precision, scale = (*syntax.modifiers, 0)[:2]
        if not 1 <= precision <= 1000 or not -1000 <= scale <= 1000:
            raise PartRefused(syntax.at, "the precision of numeric is from 1 to 1000, and its scale from -1000 to 1000")
        found = replace(found, at=syntax.at)
        return replace(
            self._kernel(syntax.at, NUMERIC, decimals.bounded(precision, scale), [found]),
            type=PgType("numeric", (precision, scale)),
        )

    def _cast_to(self, at: int, term: Term, kind: PgType) -> Term:
        if term.type is UNKNOWN:
            return self.coerced(term, kind)
        if term.type.name == kind.name:
            return replace(term, type=kind)
        entry = _entry_of_cast(term.type, kind)
        if entry is not None:
            return self.applied(at, entry, [term])
        if {term.type.name, kind.name} & {"date", "timestamp", "timestamptz"}:
            raise PartRefused(
                at,
                f"a cast from {term.type} to {kind} depends on the session's settings",
                "of a timestamptz write AT TIME ZONE 'UTC' first; for parts of a date extract(…)",
            )
        raise PartRefused(at, f"a cast from {term.type} to {kind} is not possible")


_DISTINCT: Final = {
    "is true": "IS NOT DISTINCT FROM true",
    "is not true": "IS DISTINCT FROM true",
    "is false": "IS NOT DISTINCT FROM false",
    "is not false": "IS DISTINCT FROM false",
}


def _error_until(terms: Sequence[Term], decides: str) -> str:
    """The error of the first of the terms that has one, in SQL; what stands behind a term whose value ``decides`` (a test in SQL) is not computed. Empty where
    none can fail."""
    if not any(term.error for term in terms):
        return ""
    whens = []
    for term in terms:
        if term.error:
            whens.append(f"WHEN {term.error} IS NOT NULL THEN {term.error}")
        whens.append(f"WHEN {term.sql} {decides} THEN NULL")
    return f"CASE {' '.join(whens)} END"


def _first(errors: Sequence[str]) -> str:
    return errors[0] if len(errors) == 1 else f"coalesce({', '.join(errors)})" if errors else ""


def _a(kind: PgType) -> str:
    return f"an {kind}" if str(kind)[0] in "aeiou" else f"a {kind}"


def _entry_of_cast(source: PgType, target: PgType) -> WhitelistEntry | None:
    return next((one for one in CASTS if one.name == target.name and one.arguments[0].name == source.name), None)
