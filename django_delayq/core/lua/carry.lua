#!lua flags=allow-oom
-- Copy state of an older epoch to a shard: ticks that were fired there, so that they are not fired again, and counters.
-- ARGV    3 '' or the number of the epoch, if its counters are sent (only the first time counts); 4 ... field of META
--         (tick:<id> or sight:<id>) or count:<counter>, value, field, value, ...
-- Returns '1', or '0' when nothing was stored, because this shard is a tombstone.
-- Events  none
-- include keys clock begin
if ended then
  return '0'
end
local is_counted = ARGV[3] ~= '' and redis.call('HSETNX', META, 'counted:' .. ARGV[3], '1') == 1
for i = 4, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  local kind, name = string.match(field, '^(%a+):(.*)$')
  if kind == 'count' then
    count(name, is_counted and tonumber(value) or 0)
  elseif kind == 'tick' then
    local last_tick = tonumber(redis.call('HGET', META, field)) or 0
    redis.call('HSET', META, field, text(math.max(last_tick, tonumber(value))))
  else
    redis.call('HSETNX', META, field, value)
  end
end
return '1'
