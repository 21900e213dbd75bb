#!lua flags=allow-oom
-- Extend leases, and mark the attempts that are known to have started.
-- ARGV    3 entries {id, token, started}; 4 ms that the lease lasts from now, '' = as
--         usual
-- Returns for each h(eld), s(topping: cancelled, held all the same) or l(ost); H or S if it has a permit (limit.lua).
-- Events  none
-- include keys clock begin window state seen
local ttr_ms = tonumber(ARGV[4]) or lease_ms

local answers = {}
for i, entry in ipairs(cmsgpack.unpack(ARGV[3])) do
  local id, token, started = unpack(entry)
  local s = read_state(redis.call('HGET', STATE, id))
  local is_held = s.token == token
  if is_held then
    redis.call('ZADD', LEASE, 'XX', text(now_ms + ttr_ms), id)
  end
  if is_held and started and not s.started then
    s.started = true
    put_state(id, s)
  end
  local letter = is_held and (s.stopping and 's' or 'h') or 'l'
  answers[i] = is_held and s.permit and string.upper(letter) or letter
end
local reply = table.concat(answers)
remember(reply)
return reply
