#!lua flags=allow-oom
-- Take over a job whose attempt began from a holder that is dead or whose lease ran out: with a new token and a new
-- lease. So only one process settles it, with time to send notifications before.
-- ARGV    3 '<d token><B 1 = only if the lease is over><Bc0 id>'; 4 the new holder
-- Returns the batch (lib/reserve) with the job; an empty one when it is held under another token, or its lease is not
--         over.
-- Events  none
-- include keys clock begin sweep window marks body names state due wake bytes payload lease reserve
local seen = replay()
if seen then
  return reserve_again(tonumber(seen))
end
local token, only_expired, id = struct.unpack('<dBBc0', ARGV[3])
local packed, body = redis.call('HGET', STATE, id), redis.call('HGET', BODY, id)
if not packed or not body or struct.unpack('<d', packed) ~= token or (only_expired == 1 and not has_run_out(id)) then
  return frame_of_batch(0, head(), {})
end
local s = read_state(packed)
s.token, s.worker = new_token(), ARGV[4]
set_flag(s, STARTED)
redis.call('ZADD', LEASE, 'XX', text(now_ms + lease_ms), id)
redis.call('HSET', STATE, id, pack_state(s))
remember(text(s.token))
local payloads = is_merged(body) and taken_payloads(id, s.taken, 'I2') or ''
return frame_of_batch(s.token, head(), { frame_of_job(id, s, body, payloads) })
