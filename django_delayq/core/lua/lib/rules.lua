-- Encoder of the rules of a shard; begin.lua decodes them.
local function write_rules(flags, limit, graves, ttl)
  if flags == 0 and limit == 0 and graves == 0 and ttl == 0 then
    redis.call('HDEL', META, 'rules')
  else
    redis.call('HSET', META, 'rules', struct.pack('<Bddd', flags, limit, graves, ttl))
  end
  -- schedule_fresh.lua leaves its jobs to schedule.lua where it finds this mark: only schedule.lua applies the rules.
  if flags % 2 == 1 or flags % 8 >= 4 or limit > 0 then
    redis.call('HSET', TASK, '\2', '1')
  else
    redis.call('HDEL', TASK, '\2')
  end
end
