#!lua flags=allow-oom
-- Ack jobs when their attempts begin. Only the record of the attempt is kept, until its end is stored (record.lua). If
-- its process dies before, another worker finds the record (begun.lua).
-- ARGV    3 worker; 4 entries (lib/settle)
-- Returns one '1' or '0' (the lease was lost) for each.
-- Events  none
-- include keys clock begin window marks body state due wake payload gate event run acked
local seen = replay()
if seen then
  return seen
end
local before = head()
local reply = ack(ARGV[4], function(id, s)
  local body = redis.call('HGET', BODY, id) or ''
  redis.call('HSET', BEGUN, struct.pack('<d', s.token) .. id,
    cmsgpack.pack({ id, now_ms, body, s, taken_payloads(id, s.taken) }))
end)
wake_if_earlier(before)
remember(reply)
return reply
