"""What runs inside the server, atomically: constants, data comes as arguments only.

The ledger of a store is four keys: ``cdc:{name}:applied`` (hash: position, commit_lsn, commit_ts_us, and per table ``floor:…``, the
position of its last TRUNCATE), ``cdc:{name}:graves`` (sorted set: deleted keys by position, until the cut has passed) and
``cdc:{name}:tables`` (hash: table → its keys' prefix) and ``cdc:{name}:shapes`` (hash: table → JSON of the definition that its rows
stand under, after the position that made it so). Lua's numbers are doubles, exact up to 2^53: positions stay below that.
"""

from __future__ import annotations

from typing import Final

# How the newest position of a key is read, and how a row is written, for the two shapes of a value.
_JSON_SHAPE: Final = """
local getrange, match = 'GETRANGE', string.match
local function held_position(key)
  local head = call(getrange, key, 0, 36)
  if head == '' then return nil end
  return tonumber(match(head, '^{"_cdc_position":(%d+)') or 0)
end
local function put(key, value) call('SET', key, value) end
"""
_HASH_SHAPE: Final = """
local function held_position(key)
  local position = call('HGET', key, '_cdc_position')
  return position and tonumber(position)
end
local function put(key, value)
  local row, fields = cjson.decode(value), {}
  row['_cdc_position'] = string.match(value, '^{"_cdc_position":(%d+)')
  for name, text in pairs(row) do
    if text ~= cjson.null then
      fields[#fields + 1] = name
      fields[#fields + 1] = text
    end
  end
  call('DEL', key)
  call('HSET', key, unpack(fields))
end
"""

# KEYS: applied, graves, then one per row. ARGV: the table's floor field, then one per row: the value, or for a delete its position.
# Returns how many rows were stale.
_WRITE: Final = """
local ledger = call('HMGET', KEYS[1], 'position', ARGV[1])
local floor = math.max(tonumber(ledger[1] or 0), tonumber(ledger[2] or 0))
local graves = KEYS[2]
local any_graves = call('EXISTS', graves) == 1
local stale = 0
for i = 3, #KEYS do
  local key, value = KEYS[i], ARGV[i - 1]
  local written = string.match(value, '^{"_cdc_position":(%d+)')
  local position = tonumber(written or value)
  local newest = held_position(key)
  if not newest and any_graves then newest = tonumber(call('ZSCORE', graves, key) or 0) end
  if position <= floor or newest and position <= newest then
    stale = stale + 1
  elseif written then
    put(key, value)
  else
    if newest then call('DEL', key) end
    call('ZADD', graves, position, key)
    any_graves = true
  end
end
return stale
"""

# KEYS: applied, then keys to look at. ARGV: the floor. Removes the rows below it; a TRUNCATE's range delete.
_SWEEP: Final = """
local floor, removed = tonumber(ARGV[1]), 0
for i = 2, #KEYS do
  local position = held_position(KEYS[i])
  if position and position < floor then removed = removed + call('DEL', KEYS[i]) end
end
return removed
"""

_CALL: Final = "local call = redis.call\n"
WRITE: Final = {"json": _CALL + _JSON_SHAPE + _WRITE, "hash": _CALL + _HASH_SHAPE + _WRITE}
SWEEP: Final = {"json": _CALL + _JSON_SHAPE + _SWEEP, "hash": _CALL + _HASH_SHAPE + _SWEEP}

# KEYS: applied. ARGV: the table's floor field, the TRUNCATE's position. Returns 0 when a commit covers it already.
RAISE_FLOOR: Final = """
local ledger = redis.call('HMGET', KEYS[1], 'position', ARGV[1])
local position = tonumber(ARGV[2])
if position <= tonumber(ledger[1] or 0) then return 0 end
if position > tonumber(ledger[2] or 0) then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
return 1
"""

# KEYS: applied, graves. ARGV: position, commit LSN, commit time. From here on the ledger guards what the graves did.
COMMIT: Final = """
local held = redis.call('HMGET', KEYS[1], 'position', 'commit_lsn')
local position, lsn = tonumber(held[1] or -1), tonumber(held[2] or -1)
local new = tonumber(ARGV[1])
if new < position or new == position and tonumber(ARGV[2]) <= lsn then return 0 end
redis.call('HSET', KEYS[1], 'position', ARGV[1], 'commit_lsn', ARGV[2], 'commit_ts_us', ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[1])
return 1
"""

# KEYS: shapes. ARGV: the table, the position, the definition. Positions only rise. Returns 1 when this one stands.
SET_SHAPE: Final = """
local held = redis.call('HGET', KEYS[1], ARGV[1])
local position = held and tonumber(string.match(held, '^%d+')) or -1
if tonumber(ARGV[2]) <= position then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
return 1
"""
