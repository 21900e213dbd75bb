#!lua flags=allow-oom
-- Extend leases, and mark the attempts that are known to have started.
-- ARGV    3 entries {id, token, started}; 4 ms that the lease lasts from now, '' = as
--         usual
-- Returns for each h(eld), s(topping: cancelled, held all the same) or l(ost).
-- Events  none
-- include keys clock begin window state
local seen = replay()
if seen then
  return seen
end
local ttr_ms = tonumber(ARGV[4]) or lease_ms

local function touch(id, token, started)
  local packed = redis.call('HGET', STATE, id)
  local s = read_state(packed)
  if s.token ~= token then
    return 'l'
  end
  redis.call('ZADD', LEASE, 'XX', text(now_ms + ttr_ms), id)
  if started and not s.started then
    s.started = true
    put_state(id, s)
  end
  return s.stopping and 's' or 'h'
end

local answers = {}
for i, entry in ipairs(cmsgpack.unpack(ARGV[3])) do
  answers[i] = touch(unpack(entry))
end
local reply = table.concat(answers)
remember(reply)
return reply
