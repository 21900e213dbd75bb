#!lua flags=allow-oom
-- Extend leases, and mark the attempts that are known to have started.
-- ARGV    3 entries one after another: '<d token><B started><Bc0 id>'; 4 ms that the lease lasts from now, '' = as
--         usual
-- Returns for each h(eld), s(topping: cancelled, held all the same) or l(ost).
-- Events  none
-- include keys clock begin sweep window state
local seen = replay()
if seen then
  return seen
end
local ttr_ms = tonumber(ARGV[4]) or lease_ms

local function touch(token, started, id)
  local packed = redis.call('HGET', STATE, id)
  local s = read_state(packed)
  if s.token ~= token then
    return 'l'
  end
  redis.call('ZADD', LEASE, 'XX', text(now_ms + ttr_ms), id)
  if started == 1 and not s.started then
    s.started = true
    put_state(id, s)
  end
  return s.stopping and 's' or 'h'
end

local frame, answers, at = ARGV[3], {}, 1
while at <= #frame do
  local token, started, id
  token, started, id, at = struct.unpack('<dBBc0', frame, at)
  answers[#answers + 1] = touch(token, started, id)
end
local reply = table.concat(answers)
remember(reply)
return reply
