#!lua flags=allow-oom
-- Announce a live worker, and return the commands that operators sent to it. A command is repeated until the worker
-- confirms it, because the reply may get lost.
-- KEYS    1 registry of workers (hash), 2 registry of queues (hash), 3 commands for workers (hash), 4 tasks that
--         workers can run (hash), 5 queues that operators added to its program or took from it (hash).
-- ARGV    1 name; 2 the worker's description, the server's time is put in front; 3 the ids of commands that it has
--         carried out, one after the other; '*' = the worker is new, so existing commands were meant for another one of
--         its name; 4 names of the tasks that it can run, or '': as announced before
-- Returns now ms, and the number of changes of the registry of queues so far; then the pending commands: '<ms>
--         <number>[ <word>:<id>]...', followed by the choices of operators: '[ watch:<queue>][ ignore:<queue>]...'
-- Events  none
local workers, queues, commands = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now_ms = string.format('%.0f', math.floor((time[1] * 1000000 + time[2]) / 1000))
redis.call('HSET', workers, ARGV[1], now_ms .. ':' .. ARGV[2])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[4], ARGV[1], ARGV[4])
end
local reply = now_ms .. ' ' .. (redis.call('HGET', queues, '') or '0')
if redis.call('EXISTS', commands) == 1 then
  for _, word in ipairs({'stop', 'drain', 'dump'}) do
    local field = word .. ':' .. ARGV[1]
    local id = redis.call('HGET', commands, field)
    if id and (ARGV[3] == '*' or string.find(ARGV[3], id, 1, true)) then
      redis.call('HDEL', commands, field)
    elseif id then
      reply = reply .. ' ' .. word .. ':' .. id
    end
  end
end
-- Kept as long as a process of the program announces itself: the next one that its supervisor starts needs them.
local choices = redis.call('HGETALL', KEYS[5])
for i = 1, #choices, 2 do
  reply = reply .. ' ' .. choices[i + 1] .. ':' .. choices[i]
end
if #choices > 0 then
  redis.call('EXPIRE', KEYS[5], 86400)
end
return reply
