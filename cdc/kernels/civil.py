"""Days as dates of the Gregorian calendar, which goes on before its beginning (year 0 is 1 BC). Howard Hinnant's days_from_civil and
civil_from_days: years begin in March, so that the leap day is a year's last."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cdc.kernels.jit import inlined, kernel

_ERA_DAYS: Final = 146_097
"""The length of 400 years, after which the calendar begins again."""
_TO_1970_DAYS: Final = 719_468
"""From the first of March of year 0."""


class CivilDate(NamedTuple):
    year: int
    month: int
    day: int


@inlined
def days_of(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970-01-01."""
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * _ERA_DAYS + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _TO_1970_DAYS


@kernel
def date_of(days: int) -> CivilDate:
    """The date so many days after 1970-01-01."""
    shifted = days + _TO_1970_DAYS
    era = shifted // _ERA_DAYS
    of_era = shifted - era * _ERA_DAYS
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return CivilDate(year + era * 400 + (1 if month <= 2 else 0), month, day)
