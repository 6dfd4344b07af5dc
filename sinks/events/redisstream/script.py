"""The scripts that the server carries out as one piece: look at the ledger, refuse or add the entries, move the progress.

The ledger (``ledger_key``) is a hash beside the streams, lost and restored together with them; its fields are those of ``EventStanding``. A call names the stretch
(from, to] of the log that it brings, and is taken if the ledger's progress is exactly ``from`` and its writer's epoch is the highest. So a call that was carried
out and is sent again, or comes from somebody who was replaced meanwhile, adds nothing; and one that comes where the call before it was not taken is a gap, and adds
nothing either. A script that has begun to write is not rolled back: everything that could fail is asked before the first entry, and the progress goes last.

Beside the ledger lies a hash of what is held back (``held_key``, ``sinks.events.heldback``), which each call changes together with what it brings. An event that was
held back and goes on after all comes behind entries of later positions: its id is the progress of that moment and a number that rises (``1042-3``).
"""

from __future__ import annotations

from typing import Final

DONE: Final = b"DONE"
ALREADY: Final = b"ALREADY"
GAP: Final = b"GAP"
LOST: Final = b"LOST"
FENCED: Final = b"FENCED"
AHEAD: Final = b"AHEAD"
ODD: Final = b"ODD"
MOVED: Final = b"MOVED"

DELIVER: Final = """
local held = redis.call('HMGET', KEYS[1], 'log', 'history', 'epoch', 'progress')
if not held[1] or not held[3] or not held[4] or held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return {'LOST'} end
if held[3] ~= ARGV[3] then
  if tonumber(held[3]) > tonumber(ARGV[3]) then return {'FENCED', held[3]} end
  return {'LOST'}
end
if held[4] ~= ARGV[4] then
  if tonumber(held[4]) >= tonumber(ARGV[5]) then return {'ALREADY'} end
  return {'GAP'}
end
local from = tonumber(ARGV[4])
for k = 3, #KEYS do
  local kind = redis.call('TYPE', KEYS[k]).ok
  if kind ~= 'none' and kind ~= 'stream' then return {'ODD', KEYS[k]} end
  if kind == 'stream' then
    local facts = redis.call('XINFO', 'STREAM', KEYS[k])
    for n = 1, #facts, 2 do
      if facts[n] == 'last-generated-id' and tonumber(string.match(facts[n + 1], '^%d+')) > from then
        return {'AHEAD', KEYS[k]}
      end
    end
  end
end
local at = 9 + 2 * tonumber(ARGV[7]) + tonumber(ARGV[8])
for n = 9, 7 + 2 * tonumber(ARGV[7]), 2 do redis.call('HSET', KEYS[2], ARGV[n], ARGV[n + 1]) end
for n = 9 + 2 * tonumber(ARGV[7]), at - 1 do redis.call('HDEL', KEYS[2], ARGV[n]) end
local again = ARGV[4] == ARGV[5]
while at <= #ARGV do
  local entry = {'XADD', KEYS[tonumber(ARGV[at])]}
  if ARGV[6] ~= '0' then
    entry[3], entry[4], entry[5] = 'MAXLEN', '~', ARGV[6]
  end
  if again then
    entry[#entry + 1] = ARGV[4] .. '-' .. redis.call('HINCRBY', KEYS[1], 'again', 1)
  else
    entry[#entry + 1] = ARGV[at + 1] .. '-0'
  end
  local count = tonumber(ARGV[at + 2])
  for n = at + 3, at + 2 + count do entry[#entry + 1] = ARGV[n] end
  redis.call(unpack(entry))
  at = at + 3 + count
end
redis.call('HSET', KEYS[1], 'progress', ARGV[5])
return {'DONE'}
"""
"""KEYS: the ledger, what is held back, the streams. ARGV: log, history, epoch, from, to (the same: all entries are of events that were held back), how many entries stay
(0: all), how many texts are held back from here on and how many no longer are; each id with its text, each id; then of each entry the number of its stream in KEYS, its
position, how many texts follow, and these."""

NOTE: Final = """
local held = redis.call('HMGET', KEYS[1], 'log', 'history', 'epoch', 'progress')
if not held[1] or not held[3] or held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return {'LOST'} end
if held[3] ~= ARGV[3] then
  if tonumber(held[3]) > tonumber(ARGV[3]) then return {'FENCED', held[3]} end
  return {'LOST'}
end
if held[4] ~= ARGV[4] then return {'LOST'} end
for n = 5, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[n], ARGV[n + 1]) end
return {'DONE'}
"""
"""KEYS: the ledger. ARGV: log, history, epoch, how far the writer has come, then fields of the ledger and what they are from here on. A ledger that is not as far was
restored since, and its entries with it: to note the cut there would pass over those that it lost."""

BEGIN: Final = """
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then return {'FENCED', epoch} end
for n = 2, #ARGV, 3 do
  if (redis.call('HGET', KEYS[1], ARGV[n]) or '') ~= ARGV[n + 1] then return {'MOVED'} end
end
for n = 2, #ARGV, 3 do redis.call('HSET', KEYS[1], ARGV[n], ARGV[n + 2]) end
return {'DONE'}
"""
"""KEYS: the ledger. ARGV: the writer's epoch, then each of the ledger's fields, what the writer has found there (empty: nothing) and what it is from here on. Whoever
was at work in between has taken events that are not in what was found."""


def ledger_key(store: str) -> str:
    return f"cdc:{{{store}}}:events"


def held_key(store: str) -> str:
    return f"cdc:{{{store}}}:events:held"
