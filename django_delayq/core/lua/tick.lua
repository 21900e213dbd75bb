#!lua flags=allow-oom
-- Check a shard for the dispatcher: wake a consumer when due work waits, and return when to check again. Starts the
-- reaper hold after a restart of Redis or a failover (another run), or when the caller noticed an outage. Deletes old
-- requests, and morgue records that are too many or too old.
-- ARGV    1 also the name that the shard gets, if it was never checked before; 3 '1' = hold
-- Returns a map: now, next_due (us; missing = none; what waits for quarantine left out), deadline (the next
--         one, ms; missing = none), expired (leases ran out), held_back (by the reaper hold), set_aside (jobs wait for
--         quarantine), born (its name), run_id (of Redis), marks, begun, failed and morgue (numbers of
--         entries, of the last two with the score of the newest, us), and the rules of the shard.
-- Events  none
-- include keys clock begin window marks body due payload grave
-- Each replica that takes over gets a new second part. So a loss shows even if both servers have changed their roles twice
-- since the last look.
local function info(section, name)
  return string.match(redis.call('INFO', section), name .. ':(%w+)') or ''
end
local run_id = info('server', 'run_id') .. info('replication', 'master_replid')
local last_run_id = redis.call('HGET', META, 'run_id')
if last_run_id ~= run_id then
  redis.call('HSET', META, 'run_id', run_id)
end
if ARGV[3] == '1' or (last_run_id and last_run_id ~= run_id) then
  hold_ms = now_ms + lease_ms
end
-- A name that differs from the previous one means that the shard has lost its data. The request id is as random as
-- anything available here.
local born = redis.call('HGET', META, 'born')
if not born and not ended then
  born = request
  redis.call('HSET', META, 'born', born)
  for class, key in pairs(DUE) do -- if only META was lost, jobs wait in classes that nobody would look at
    if redis.call('EXISTS', key) == 1 then
      use_class(class)
    end
  end
end
sweep(redis.call('LLEN', WINDOW), 250)
trim_graves(250)
write_marks()
keep_clock()
if is_used(LANE) then
  get_lanes().forget_groups()
end

-- Paused work needs no check before the pause ends.
local next_due = handed_out_at(head())
-- A consumer that is woken by a job in quarantine does not take it, but notices that it is overdue.
if is_due(next_due) or is_due(handed_out_at(head(QUARANTINE, QUARANTINE))) then
  wake()
end
local function newest(index)
  local last = redis.call('ZRANGE', index, -1, -1, 'WITHSCORES')
  return { redis.call('ZCARD', index), tonumber(last[2]) or 0 }
end

local deadline = tonumber(redis.call('ZRANGE', LEASE, 0, 0, 'WITHSCORES')[2])
return cmsgpack.pack({
  now = now_us, next_due = next_due, deadline = deadline, expired = deadline and deadline <= now_ms or false,
  held_back = hold_ms > now_ms, set_aside = redis.call('EXISTS', DUE[QUARANTINE]) > 0, born = born or '', run_id = run_id,
  marks = redis.call('HLEN', MARKS), begun = redis.call('HLEN', BEGUN), failed = newest(FAILED),
  morgue = newest(MORGUE), rules = rules,
})
