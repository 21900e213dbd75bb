#!lua flags=allow-oom
-- Announce a live worker, and return the commands that operators sent to it. A command is repeated until the worker
-- confirms it, because the reply may get lost.
-- KEYS    1 registry of workers (hash), 2 registry of queues (hash), 3 tasks that workers can run (hash), 4 commands for
--         this worker (hash: word -> id), 5 queues that operators added to its program or took from it (hash), 6 limits
--         that were set at run time (hash).
-- ARGV    1 name; 2 the worker's description, the server's time is put in front; 3 the ids of commands that it has
--         carried out, one after the other; '*' = the worker is new, so existing commands were meant for another one of
--         its name; 4 names of the tasks that it can run, or '': as announced before
-- Returns {now ms, number of changes of the registry of queues so far, {word, id of a pending command, ...}, {queue,
--         'watch' or 'ignore', ...}, names of the limits}
-- Events  none
local commands, choices = KEYS[4], KEYS[5]
-- include text
local time = redis.call('TIME')
local now_ms = text(math.floor((time[1] * 1000000 + time[2]) / 1000))
redis.call('HSET', KEYS[1], ARGV[1], now_ms .. ':' .. ARGV[2])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
end
if ARGV[3] == '*' then
  redis.call('DEL', commands)
end
local pending = redis.call('HGETALL', commands)
for i = 1, #pending, 2 do
  if string.find(ARGV[3], pending[i + 1], 1, true) then
    redis.call('HDEL', commands, pending[i])
  end
end
-- Kept as long as a process of the program announces itself: the next one that its supervisor starts needs them.
redis.call('EXPIRE', choices, 86400)
return {
  now_ms, redis.call('HGET', KEYS[2], '') or '0', redis.call('HGETALL', commands), redis.call('HGETALL', choices),
  redis.call('HKEYS', KEYS[6]),
}
