"""Compaction: of a topic's older changes only each key's last is kept, so that the log grows with the data and not with its changes.

The log stays readable throughout, because of what is dropped and in which order (``survivors`` has the rules):

- Only changes below the topic's *clean point* go, each superseded by a later one that is also below it. Whoever reads on from anywhere reaches
  the clean point with every row as it was; before that he is loading.
- A DELETE (and a TRUNCATE) goes only below the topic's *floor*. Whoever has read up to a place before the floor cannot go on: he would never hear of
  the row's end. Only who began at 0 after they went can: he has never had the row. So marks say which raisings of floors they know of
  (``cdc.model.lineage``).
- Both points are recorded before anything is dropped, and the topic's stretches are replaced from its beginning on: at any moment a DELETE is still
  there unless what it deleted is gone already.

``survivors`` says which changes of one topic stay (pure), ``bounds`` how far compaction may go and whether it is worth it (pure), ``pins`` who holds it
back, ``merge`` does one topic, and ``worker`` is the thread that looks at all of them now and then.
"""
