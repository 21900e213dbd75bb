-- Encoder of the rules of a shard; begin.lua decodes them, the last one where it is needed: ms after which a due job
-- starves (lib/reserve).
local function write_rules(bits, limit, graves, ttl, in_end, out_end, starve_after)
  if bits == 0 and limit == 0 and graves == 0 and ttl == 0 and starve_after == 0 then
    redis.call('HDEL', META, 'rules')
  else
    redis.call('HSET', META, 'rules', struct.pack('<Bdddddd', bits, limit, graves, ttl, in_end, out_end, starve_after))
  end
  -- schedule_fresh.lua leaves its jobs to schedule.lua where it finds this mark: only schedule.lua applies the rules.
  if bits % 2 == 1 or bits % 8 >= CLOSING or bits % 64 >= PRODUCERS_PAUSED or limit > 0 then
    redis.call('HSET', TASK, '\2', '1')
  else
    redis.call('HDEL', TASK, '\2')
  end
end
