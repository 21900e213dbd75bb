#!lua
-- Store one plain job under an id that was just generated, without a wake-up: the most common schedule() call, so it is
-- written out without functions and with few keys. Every special case is left to schedule.lua: a task or class that is
-- new here, a shard with rules, a job that becomes the shard's next, or a clock that went back (lib/begin). No job can be
-- live under an id that was just generated.
-- KEYS    1 due set of the job's class; 2 body; 3 count; 4 reply; 5 window; 6 meta; 7 task
-- ARGV    1 request id; 2 '<I4 ms for which the caller may repeat the call>'; 3 id; 4 task; 5 body without the task's
--         number; 6 '=' and the due time (ms), or '+' and the delay (ms)
-- Returns c(reated), or nothing when schedule.lua has to decide.
-- Events  none
local META = KEYS[6]
-- include clock
local call = redis.call
if call('HEXISTS', KEYS[4], ARGV[1]) == 1 then
  return redis.status_reply('c')
end
local id, body, ms = ARGV[3], ARGV[5], tonumber(string.sub(ARGV[6], 2))
local codes = call('HMGET', KEYS[7], ARGV[4], '\2')
local number = not codes[2] and codes[1]
-- A head means that the class is in use; a later one means that a consumer has to be woken.
local head = number and call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if not head then
  return false
end
local now_us = server_us()
local clock_seen = call('HGET', KEYS[6], 'clock')
if clock_seen and tonumber(clock_seen) > now_us then
  return false
end
local now_ms = math.floor(now_us / 1000)
local seq = call('HINCRBY', KEYS[6], 'seq', 1)
local is_delay = string.sub(ARGV[6], 1, 1) == '+'
local due = (is_delay and ms + now_ms or ms) * 1000 + seq % 1000
-- One call in 64 takes the long way, which also sweeps the request window.
if tonumber(head) > due or seq % 64 == 0 then
  return false
end
call('HSET', KEYS[2], id, string.sub(body, 1, 1) .. struct.pack('<I2', tonumber(number)) .. string.sub(body, 2))
call('HINCRBY', KEYS[3], 'created', 1)
call('ZADD', KEYS[1], string.format('%.0f', due), id)
call('RPUSH', KEYS[5], ARGV[1] .. struct.pack('<d', now_ms) .. ARGV[2])
call('HSET', KEYS[4], ARGV[1], 'c')
return redis.status_reply('c')
