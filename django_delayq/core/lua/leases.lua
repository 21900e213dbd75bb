#!lua flags=no-writes
-- Return reserved jobs by the end of their lease, for the reaper, the supervisor and the inspector.
-- ARGV    3 offset; 4 limit; 5 '1' = only leases that ran out (none during a reaper hold)
-- Returns the names of the tasks, "<I2 n>" and for each "<d deadline ms>", id, state, body as "Bc0 I4c0 I4c0".
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
  local state = redis.call('HGET', STATE, id) or ''
  local body = redis.call('HGET', BODY, id) or ''
  name_task_of(body)
  jobs[#jobs + 1] = struct.pack('<dBc0I4c0I4c0', tonumber(leases[i + 1]), #id, id, #state, state, #body, body)
end
return frame_of_names() .. struct.pack('<I2', #jobs) .. table.concat(jobs)
