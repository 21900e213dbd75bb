#!lua flags=no-writes
-- Return the numbers of jobs of some shards by place.
-- KEYS    those of each shard, one after the other; on a cluster those of one shard
-- ARGV    3 ... offsets from now in ms, ascending, for the backlog; none = no backlog is returned
-- Returns for each shard {now ms, ready, delayed, reserved, gated, failed, morgue, {priority and its oldest due us (-1
--          none) for each that was ever used, without jobs that wait for quarantine or are parked}, first deadline ms (-1
--          none), hold until ms, marks, how many wait for quarantine (ready and delayed ones), how many attempts of jobs
--          that were acked before they began have no stored end, how many are parked, {how many wait that are due up to
--          each offset}, counter name, counter value, ...}.
-- Events  none
local all, answers = KEYS, {}
for place = 1, #all, 31 do -- keys of a shard, and its wake list
  local KEYS = { unpack(all, place, place + 30) }
  -- include keys clock begin body due
  local ready, waiting, backlog, heads = 0, 0, {}, {}
  for place = 1, #ARGV - 2 do
    backlog[place] = 0
  end
  for class = 1, #DUE do
    local size = is_used(class) and redis.call('ZCARD', DUE[class]) or 0
    if is_used(class) and class < QUARANTINE then
      heads[#heads + 1], heads[#heads + 2] = class - 1, text(size > 0 and head(class, class) or -1)
    end
    if size > 0 then
      waiting = waiting + size
      ready = ready + redis.call('ZCOUNT', DUE[class], '-inf', text(now_ms * 1000 + 999))
      for place = 1, #backlog do
        local until_us = text((now_ms + tonumber(ARGV[place + 2])) * 1000 + 999)
        backlog[place] = backlog[place] + redis.call('ZCOUNT', DUE[class], '-inf', until_us)
      end
    end
  end
  local first = redis.call('ZRANGE', LEASE, 0, 0, 'WITHSCORES')
  local answer = {
    text(now_ms), ready, waiting - ready, redis.call('ZCARD', LEASE), redis.call('HLEN', GATE),
    redis.call('ZCARD', FAILED), redis.call('ZCARD', MORGUE), heads, first[2] or '-1', text(hold_ms),
    redis.call('HLEN', MARKS), redis.call('ZCARD', DUE[QUARANTINE]), redis.call('HLEN', BEGUN),
    redis.call('ZCARD', DUE[PARKED]), backlog,
  }
  for _, item in ipairs(redis.call('HGETALL', COUNT)) do
    answer[#answer + 1] = item
  end
  answers[#answers + 1] = answer
end
return answers
