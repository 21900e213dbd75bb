#!lua flags=allow-oom
-- Ack jobs when their attempts begin. Only the record of the attempt is kept, until its end is stored (record.lua). If
-- its process dies before, another worker finds the record (begun.lua).
-- ARGV    3 worker; 4 entries (lib/settle)
-- Returns one '1' or '0' (the lease was lost) for each.
-- Events  none
-- include keys clock begin sweep window marks body state due wake bytes payload gate event lease run acked
local seen = replay()
if seen then
  return seen
end
local before = head()
local reply = ack(ARGV[4], function(id, packed)
  local s, body = read_state(packed), redis.call('HGET', BODY, id) or ''
  local payloads = is_merged(body) and taken_payloads(id, s.taken, 'I2') or ''
  redis.call('HSET', BEGUN, struct.pack('<d', s.token) .. id,
    struct.pack('<dI4c0I4c0I4c0', now_ms, #packed, packed, #body, body, #payloads, payloads))
end)
wake_if_earlier(before)
remember(reply)
return reply
