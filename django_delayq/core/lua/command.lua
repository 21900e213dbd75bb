#!lua flags=allow-oom
-- Send a command to a worker, which receives it with its next announcement.
-- KEYS    1 registry of workers (hash), 2 commands for workers (hash).
-- ARGV    1 name; 2 word; 3 id of this call
-- Returns 1, or 0: no such worker is registered.
-- Events  none
local workers, commands = KEYS[1], KEYS[2]
if redis.call('HEXISTS', workers, ARGV[1]) == 0 then
  return 0
end
redis.call('HSET', commands, ARGV[2] .. ':' .. ARGV[1], ARGV[3])
return 1
