"""``python -m cdc.demo.delays WAREHOUSE``: what the warehouse knows of delays, read with Spark."""

from __future__ import annotations

import sys
from pathlib import Path

_QUESTION = """
select name as airline, count(*) as flights, round(avg(dep_delay_min), 1) as departs_late_min, round(avg(arr_delay_min), 1) as arrives_late_min
from warehouse.public.flights join warehouse.public.airlines using (carrier)
where status = 'landed' group by name order by arrives_late_min desc
"""


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m cdc.demo.delays WAREHOUSE", file=sys.stderr)
        return 2
    from cdc.spark.session import session, stop

    spark = session(app="delays", warehouse=Path(arguments[0]))
    try:
        spark.sql(_QUESTION).show(50, truncate=False)
    finally:
        stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
