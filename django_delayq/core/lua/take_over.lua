#!lua flags=allow-oom
-- Take over jobs whose leases ran out, with a new token and a new lease. So only one process settles them, with time to send
-- notifications before. Their attempts stay as they are: begun or not.
-- ARGV    3 entries {id, token}; 4 the new holder
-- Returns the batch (lib/reserve) with the jobs that are still held under these tokens, and whose leases are over; with none
--         during a reaper hold.
-- Events  none
-- include keys clock begin window marks body state due payload reserve
local seen = replay()
if seen then
  return reserve_again(tonumber(seen))
end
local token = 0
for _, entry in ipairs(now_ms >= hold_ms and cmsgpack.unpack(ARGV[3]) or {}) do
  local id = entry[1]
  local s, deadline = read_state(redis.call('HGET', STATE, id)), tonumber(redis.call('ZSCORE', LEASE, id))
  -- A lease whose state cannot be read has no token.
  if deadline and deadline <= now_ms and (s.token or 0) == entry[2] then
    token = token > 0 and token or take_token(ARGV[4])
    s.token, s.worker = token, ARGV[4]
    increment(s, 'timeouts')
    redis.call('ZADD', LEASE, 'XX', text(now_ms + lease_ms), id)
    put_state(id, s)
    add_held(id, s, redis.call('HGET', BODY, id) or '')
  end
end
remember(text(token))
return (batch())
