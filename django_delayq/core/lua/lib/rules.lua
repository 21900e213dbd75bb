-- Writes the rules of a shard; lib/begin reads them.
local function write_rules(changed)
  if next(changed) then
    redis.call('HSET', META, 'rules', cmsgpack.pack(changed))
  else
    redis.call('HDEL', META, 'rules')
  end
  -- schedule_fresh.lua leaves its jobs to schedule.lua where it finds this mark: only schedule.lua applies the rules.
  if changed.paused_in or changed.closing or changed.producers_paused or changed.max_length then
    redis.call('HSET', TASK, '\2', '1')
  else
    redis.call('HDEL', TASK, '\2')
  end
end
