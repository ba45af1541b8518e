"""What the shared cache does in one step, in Valkey's Lua.

Each row has a slot. An empty slot is given to the first who asks for it, as a *lease*: a token that
only the store's answer of that reader can take the place of. Whoever writes the row empties the
slot, and with it the lease: so what was read before the write cannot get in after it, whoever was
slow. Versions would not do for this: they start over when a row is deleted and made again, and
stay the same when it is kept in other bytes.

The name of a slot holds two *eras*, the bank's and the collection's. Another era empties all
slots at once; one that was lost is replaced by a new one, never by an old one.
"""

from __future__ import annotations

#: Slots hold this, then the token of a lease.
LEASE = b"L"
#: Slots hold this, then the row.
ROW = b"R"

_SLOTS = """
local function era(name)
  local known = redis.pcall('GET', name)
  if type(known) ~= 'string' then
    known = ARGV[2]
    redis.call('SET', name, known, 'EX', 604800)
  end
  return known
end
local slots = ARGV[1] .. era(KEYS[1]) .. era(KEYS[2])
"""

# ARGV: prefix, new era, token, milliseconds of a lease, keys…
# Gives the time in microseconds, then for each key what is in its slot: a row, our lease, or
# nothing if somebody else has the lease.
LOOK = f"""{_SLOTS}
local time = redis.call('TIME')
local found = {{time[1] .. string.format('%06d', tonumber(time[2]))}}
for i = 5, #ARGV do
  local slot = slots .. ARGV[i]
  local held = redis.pcall('GET', slot)
  if held == false then
    redis.call('SET', slot, ARGV[3], 'PX', ARGV[4])
    held = ARGV[3]
  elseif type(held) ~= 'string' or string.sub(held, 1, 1) ~= 'R' then
    held = false
  end
  found[#found + 1] = held
end
return found
"""

# ARGV: prefix, new era, token, milliseconds to live, keys and rows by turns…
PUT = f"""{_SLOTS}
for i = 5, #ARGV, 2 do
  local slot = slots .. ARGV[i]
  if redis.pcall('GET', slot) == ARGV[3] then
    redis.call('SET', slot, ARGV[i + 1], 'PX', ARGV[4])
  end
end
return true
"""

# ARGV: prefix, new era, channel, message, keys…
DROP = f"""{_SLOTS}
for i = 5, #ARGV do
  redis.call('DEL', slots .. ARGV[i])
end
return redis.call('PUBLISH', ARGV[3], ARGV[4])
"""

# ARGV: era, channel, message. KEYS: the eras that end.
END = """
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], ARGV[1], 'EX', 604800)
end
return redis.call('PUBLISH', ARGV[2], ARGV[3])
"""
