"""Lua scripts: what the server does in one atomic step.

A script that fails halfway keeps what it had done. So these check everything first: the types of
keys, and by `PROBE` the user's rights. A full server refuses only the first write of a script.

Row keys are made from those in the index and not all are declared: that works on a single server,
and a cluster is refused.
"""

from __future__ import annotations

import hashlib


class Script:
    """A script and its SHA, by which the server knows it."""

    __slots__ = ("sha", "text")

    def __init__(self, *parts: str) -> None:
        self.text = "\n".join(parts).encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


#: Facts of a stored row: version, created, updated, expires, checksum, schema.
_HEADER = """
local HEADER, HEADER_SIZE = '>I8I8I8i8i8I4', 44

-- Version and creation of the row that is there at this moment, 0 if there is none; and the schema
-- of the row that is stored, whether or not it has expired. What is too short to be a row is none.
local function look(key, moment)
  local header = redis.call('GETRANGE', key, 0, HEADER_SIZE - 1)
  if #header < HEADER_SIZE then return 0, 0, 0 end
  local version, created, _, expires, _, schema = struct.unpack(HEADER, header)
  if expires >= 0 and expires <= moment then return 0, 0, schema end
  return version, created, schema
end
"""

#: KEYS[1] is `Names.meta`, KEYS[2] `Names.tickets`; ARGV[1] the number of this write, ARGV[2] the
#: moment, and the last of ARGV the slot it is written under. Tickets have no time to live: a full
#: server may delete what has one.
_TICKET = """
local ticket = tonumber(ARGV[1])
local slot = ARGV[#ARGV]
local last = redis.call('HGET', KEYS[2], slot)
if last then
  local number, answer = string.match(last, '^(%d+) %d+ (.*)$')
  if tonumber(number) == ticket then return {'done', answer} end
  if tonumber(number) > ticket then return {'late'} end
end
if redis.call('EXISTS', KEYS[1]) == 0 then return {'gone'} end

local function done(answer)
  redis.call('HSET', KEYS[2], slot, ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. answer)
  return {'done', answer}
end
"""

#: Checks stand first among the arguments; returns the first that does not hold.
_CHECKS = """
local function unmet(first_key, first_arg, count, moment)
  for n = 1, count do
    local version, created = struct.unpack('>I8I8', ARGV[first_arg + n])
    local found, born = look(KEYS[first_key + n], moment)
    if found ~= version or (found > 0 and born ~= created) then return {'check', n, found} end
  end
end
"""

_SWEEP = """
local function sweep(index, expiry, moment, limit)
  local rows = string.gsub(index, ':i:', ':r:', 1) .. ':'
  local dead = redis.call('ZRANGEBYSCORE', expiry, '-inf', moment, 'LIMIT', 0, limit)
  for _, key in ipairs(dead) do
    redis.call('DEL', rows .. key)
    redis.call('ZREM', index, key)
    redis.call('ZREM', expiry, key)
  end
  return #dead
end
"""

#: Apply a batch. KEYS: meta, tickets; index and expiry of each collection; the rows of the checks;
#: the rows of the writes. ARGV: ticket, moment, how many collections, checks and writes; then
#: the checks, two for each write, and the slot. Nobody may call `sweep` for a store that is used
#: as a cache: so each batch also removes a few rows that have expired.
COMMIT = Script(
    _HEADER,
    _CHECKS,
    _SWEEP,
    _TICKET,
    """
local moment = tonumber(ARGV[2])
local collections, checks, writes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local expiring = {}
for n = 1, collections do
  redis.call('ZCARD', KEYS[1 + 2 * n])
  expiring[n] = redis.call('ZCARD', KEYS[2 + 2 * n]) > 0
end
local row, arg = 2 + 2 * collections, 5
local refused = unmet(row, arg, checks, moment)
if refused then return refused end
row, arg = row + checks, arg + checks

local versions, births = {}, {}
for n = 1, writes do
  local _, expected, schema = struct.unpack('>I2i8i8', ARGV[arg + 2 * n - 1])
  local version, created, stored = look(KEYS[row + n], moment)
  if expected >= 0 and version ~= expected then return {'write', n, version} end
  if ARGV[arg + 2 * n] == '' then
    versions[n] = 0
  else
    if stored > schema then return {'newer', n, stored} end
    versions[n] = version + 1
    births[n] = version > 0 and created or moment
  end
end

for n = 1, writes do
  local number, _, _, expires, life = struct.unpack('>I2i8i8i8i8', ARGV[arg + 2 * n - 1])
  local index, expiry = KEYS[1 + 2 * number], KEYS[2 + 2 * number]
  local key = string.sub(KEYS[row + n], #index + 2)
  if versions[n] == 0 then
    redis.call('DEL', KEYS[row + n])
    redis.call('ZREM', index, key)
    redis.call('ZREM', expiry, key)
  else
    local stored = struct.pack('>I8I8', versions[n], births[n]) .. ARGV[arg + 2 * n]
    if expires < 0 then
      redis.call('SET', KEYS[row + n], stored)
      if expiring[number] then redis.call('ZREM', expiry, key) end
    else
      redis.call('SET', KEYS[row + n], stored, 'PX', string.format('%.0f', life))
      redis.call('ZADD', expiry, string.format('%.0f', expires), key)
    end
    redis.call('ZADD', index, 0, key)
  end
end
for n = 1, collections do
  if expiring[n] then sweep(KEYS[1 + 2 * n], KEYS[2 + 2 * n], ARGV[2], 4) end
end
local answer = table.concat(versions, ',')
if writes == 0 then return {'done', answer} end
return done(answer)
""",
)

#: Keep rows in other bytes. KEYS: meta, tickets, the rows of the checks, the rows. ARGV: ticket,
#: moment, how many checks and rows; then the checks, two for each row, and the slot.
RECODE = Script(
    _HEADER,
    _CHECKS,
    _TICKET,
    """
local checks, rows = tonumber(ARGV[3]), tonumber(ARGV[4])
local refused = unmet(2, 4, checks, tonumber(ARGV[2]))
if refused then return refused end
local count = 0
for n = 1, rows do
  local key = KEYS[2 + checks + n]
  local version, created, sum, schema = struct.unpack('>I8I8i8I4', ARGV[3 + checks + 2 * n])
  local header = redis.call('GETRANGE', key, 0, HEADER_SIZE - 1)
  if #header == HEADER_SIZE then
    local is, born, _, _, has, stored_schema = struct.unpack(HEADER, header)
    if is == version and born == created and has == sum and stored_schema <= schema then
      local stored = string.sub(header, 1, 32) .. ARGV[4 + checks + 2 * n]
      redis.call('SET', key, stored, 'KEEPTTL')
      count = count + 1
    end
  end
end
if count == 0 then return {'done', '0'} end
return done(tostring(count))
""",
)

#: Delete rows that have expired. KEYS: index and expiry of a collection. ARGV: moment, limit.
SWEEP = Script(
    _SWEEP,
    """
return sweep(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
""",
)

#: Forget tickets of writers that have gone without a word. KEYS: tickets. ARGV: those from before
#: this moment. Returns how many.
SWEEP_TICKETS = Script(
    """
local before, old = tonumber(ARGV[1]), {}
local found = redis.call('HGETALL', KEYS[1])
for n = 1, #found, 2 do
  local moment = string.match(found[n + 1], '^%d+ (%d+) ')
  if tonumber(moment or 0) < before then old[#old + 1] = found[n] end
end
for _, slot in ipairs(old) do redis.call('HDEL', KEYS[1], slot) end
return #old
"""
)

#: Some rows in key order. KEYS: the index. ARGV: what row keys begin with, moment, the command
#: and both ends of the range, how many rows to pass over and to return, how many keys to look at
#: and how many bytes to return at most. Returns keys and rows in turn, how many rows were passed
#: over, and the last key looked at, or nothing behind the last.
FIND = Script(
    _HEADER,
    """
local rows, moment, range, from, to = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local pass, limit = tonumber(ARGV[6]), tonumber(ARGV[7])
local most, room = tonumber(ARGV[8]), tonumber(ARGV[9])
local found, passed = {}, 0
local keys = redis.call(range, KEYS[1], from, to, 'LIMIT', 0, most)
for n, key in ipairs(keys) do
  if passed < pass then
    if look(rows .. key, moment) > 0 then passed = passed + 1 end
  else
    local stored = redis.call('GET', rows .. key)
    if stored and #stored >= HEADER_SIZE then
      local _, _, _, expires = struct.unpack(HEADER, stored)
      if expires >= 0 and expires <= moment then stored = false end
    end
    if stored then
      found[#found + 1] = key
      found[#found + 1] = stored
      room = room - #stored
      if #found == 2 * limit or room <= 0 then return {found, passed, key} end
    end
  end
end
return {found, passed, #keys == most and keys[#keys] or false}
""",
)

#: Everything that the others do, on a key of nobody: so that a user who may not do all of it is
#: told at once, and not in the middle of a batch. It deletes first: that is allowed on a full
#: server, and what follows is then, too.
PROBE = Script(
    """
local key = KEYS[1]
redis.call('DEL', key)
redis.call('SET', key, 'x', 'PX', 1000)
redis.call('SET', key, 'y', 'KEEPTTL')
redis.call('GET', key)
redis.call('GETRANGE', key, 0, 1)
redis.call('EXISTS', key)
redis.call('DEL', key)
redis.call('HSET', key, 'a', 'b')
redis.call('HGET', key, 'a')
redis.call('HGETALL', key)
redis.call('HDEL', key, 'a')
redis.call('DEL', key)
redis.call('ZADD', key, 0, 'a')
redis.call('ZCARD', key)
redis.call('ZRANGEBYLEX', key, '-', '+', 'LIMIT', 0, 1)
redis.call('ZREVRANGEBYLEX', key, '+', '-', 'LIMIT', 0, 1)
redis.call('ZRANGEBYSCORE', key, '-inf', 0, 'LIMIT', 0, 1)
redis.call('ZREM', key, 'a')
redis.call('DEL', key)
return 'ok'
"""
)
