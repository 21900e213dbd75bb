#!lua flags=no-writes
-- Return the numbers of jobs of some shards by place.
-- KEYS    those of each shard, one after the other; on a cluster those of one shard
-- ARGV    3 ... offsets from now in ms, ascending, for the backlog; none = no backlog is returned
-- Returns a list, packed by cmsgpack, of a map for each shard: now (ms), ready, delayed, reserved, gated, failed, morgue,
--          marks; quarantine: how many wait for it (ready and delayed ones), parked: how many due ones are in lanes, parked_us: when the first of all
--          in lanes is due, or false; begun:
--          how many attempts of jobs that were acked before they began have no stored end; hold (until, ms); oldest
--          {priority, its oldest due us (-1 none), ...} of each that was ever used, without jobs that wait for quarantine or
--          in a lane; due {how many wait that are due up to each offset}; counters {name, value, ...}.
-- Events  none
local all, answers = KEYS, {}
for place = 1, #all, 33 do -- keys of a shard, and its wake list
  local KEYS = { unpack(all, place, place + 32) }
  -- include keys clock begin body due
  local ready, waiting, backlog, heads, parked, parked_us = 0, 0, {}, {}, 0, false
  for place = 1, #ARGV - 2 do
    backlog[place] = 0
  end
  for class = 1, #DUE do
    local size = is_used(class) and redis.call('ZCARD', DUE[class]) or 0
    local first_us = size > 0 and tonumber(redis.call('ZRANGE', DUE[class], 0, 0, 'WITHSCORES')[2])
    local due = size > 0 and redis.call('ZCOUNT', DUE[class], '-inf', text(now_ms * 1000 + 999)) or 0
    waiting, ready = waiting + size, ready + due
    if class == LANE then
      parked, parked_us = due, first_us
    elseif is_used(class) and class < QUARANTINE then
      heads[#heads + 1], heads[#heads + 2] = class - 1, first_us or -1
    end
    if size > 0 then
      for place = 1, #backlog do
        local until_us = text((now_ms + tonumber(ARGV[place + 2])) * 1000 + 999)
        backlog[place] = backlog[place] + redis.call('ZCOUNT', DUE[class], '-inf', until_us)
      end
    end
  end
  answers[#answers + 1] = {
    now = now_ms, hold = hold_ms, oldest = heads, due = backlog, counters = redis.call('HGETALL', COUNT),
    ready = ready, delayed = waiting - ready, reserved = redis.call('ZCARD', LEASE), gated = redis.call('HLEN', GATE),
    failed = redis.call('ZCARD', FAILED), morgue = redis.call('ZCARD', MORGUE), marks = redis.call('HLEN', MARKS),
    quarantine = redis.call('ZCARD', DUE[QUARANTINE]), parked = parked, parked_us = parked_us,
    begun = redis.call('HLEN', BEGUN),
  }
end
return cmsgpack.pack(answers)
