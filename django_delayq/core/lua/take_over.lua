#!lua flags=allow-oom
-- Take over a job whose attempt began from a holder that is dead or whose lease ran out: with a new token and a new
-- lease. So only one process settles it, with time to send notifications before.
-- ARGV    3 {id, token, true = only if the lease is over}; 4 the new holder
-- Returns the batch (lib/reserve) with the job; an empty one when it is held under another token, or its lease is not
--         over.
-- Events  none
-- include keys clock begin window marks body state due payload reserve
local seen = replay()
if seen then
  return reserve_again(tonumber(seen))
end
local id, token, only_expired = unpack(cmsgpack.unpack(ARGV[3]))
local packed, body = redis.call('HGET', STATE, id), redis.call('HGET', BODY, id)
local s = read_state(packed)
if not packed or not body or s.token ~= token or (only_expired and not has_run_out(id)) then
  return (batch())
end
s.token, s.worker, s.started = take_token(ARGV[4]), ARGV[4], true
redis.call('ZADD', LEASE, 'XX', text(now_ms + lease_ms), id)
put_state(id, s)
remember(text(s.token))
add_held(id, s, body)
return (batch())
