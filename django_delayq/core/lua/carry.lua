#!lua flags=allow-oom
-- Tells a shard of ticks that were fired in a shard of an older epoch, so that they are not fired again.
-- ARGV    3 ... field of META (tick:<id> or sight:<id>), value, field, value, ...
-- Returns '1'.
-- Events  none
-- include keys
for i = 3, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  if string.sub(field, 1, 5) == 'tick:' then
    local known = tonumber(redis.call('HGET', META, field)) or 0
    if tonumber(value) > known then
      redis.call('HSET', META, field, value)
    end
  else
    redis.call('HSETNX', META, field, value)
  end
end
return '1'
