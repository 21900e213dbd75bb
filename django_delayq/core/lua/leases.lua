#!lua flags=no-writes
-- Return reserved jobs by the end of their lease, for the reaper, the supervisor and the inspector.
-- ARGV    3 offset; 4 limit; 5 '1' = only leases that ran out (none during a reaper hold)
-- Returns {tasks: code -> name; {id, deadline in ms, body, state} of each}.
-- Events  none
-- include keys clock begin body names
local offset, limit, only_expired = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'
local leases = {}
if not (only_expired and now_ms < hold_ms) then
  local until_ms = only_expired and text(now_ms) or '+inf'
  leases = redis.call('ZRANGEBYSCORE', LEASE, '-inf', until_ms, 'WITHSCORES', 'LIMIT', offset, limit)
end
local jobs = {}
for i = 1, #leases, 2 do
  local id = leases[i]
  local state = redis.call('HGET', STATE, id)
  local body = redis.call('HGET', BODY, id) or ''
  name_task_of(body)
  jobs[#jobs + 1] = { id, tonumber(leases[i + 1]), body, state and cmsgpack.unpack(state) or {} }
end
return cmsgpack.pack({ tasks, jobs })
