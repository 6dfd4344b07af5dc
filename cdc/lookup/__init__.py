"""Keyed look-up: the rows of many keys at once, as of a cut, without a look at the whole topic.

Of each topic that configuration asks it for, the log's folder holds *runs* (``lookup/…/*.run``): immutable files, each of one range of the topic's
positions, with a pair (digest of the key, position) for each change in it, sorted. A look-up takes the newest position at or below the cut from them, from
the newest run to the oldest, and the row from the log at that position.

What always holds:

- **The log is the truth, runs only point into it.** A row counts once its own key has been compared with the one that was asked for. Of keys with equal
  digests one that is in the way is passed over, and the next older position is tried. So a digest decides nothing but how long a look-up takes.
- **The topic's definitions decide what counts.** Runs know where a TRUNCATE or a SCHEMA record emptied the topic: nothing before counts. From where
  another key tells rows apart, a *chapter* begins: its first run holds the rows that lived then under the key that their values have since (as
  ``sinks.past.live_rows``), and runs of other chapters are not asked. A row is handed out under the definition in force at the cut.
- **Runs join without gaps** from the log's beginning. What is behind the last, or behind the first that cannot be believed, the look-up reads from the log
  itself, up to ``TAIL_ROWS``. Where that is too much it says so (LookupBehind), and never leaves anything out.
- **Nothing waits for runs.** A thread of the capture process writes them from what is durable, and merges runs of like size, so that there are few. It reads
  the log as any reader does, and is never in the way of an append.
- **Compaction takes nothing from a look-up.** Positions stay. What was dropped below the clean point had been superseded there, or was a DELETE, so the
  row is absent as it should be; as of a cut below the clean point the answer is POSITION_GONE.

What happens when something fails: a run is written aside, synced and renamed, so it is whole or not there. A run whose checksums differ, or that is of another
log, history or topic, or whose last change the log does not have (it was put back from a copy), is named in a warning and removed, with what comes behind
it, and made again from the log. Two runs of a
merge that a crash has left beside what they were merged into are removed by the next look.

``entries`` (pairs), ``standing`` (definitions) and ``scan`` (changes → runs) are pure; ``runfile`` and ``shelf`` touch the files, ``lookup`` answers, ``upkeep``
keeps one topic's runs, and ``worker`` is the thread.
"""
