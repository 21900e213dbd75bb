#!lua
-- One plain job under an id that was just made, waking nobody: what most calls of schedule() are, so it is written out
-- without functions and with few keys. Whatever is not ordinary is left to schedule.lua: a task or class that is new
-- here, a clock that stepped back, a job that becomes the shard's next, an id that lives after all.
-- KEYS    1 due set of the job's class; 2 body; 3 count; 4 reply; 5 window; 6 meta; 7 task
-- ARGV    1 request id; 2 the constants of the shard (not used); 3 one entry of schedule.lua
-- Returns c(reated), or nothing when schedule.lua has to decide.
-- Events  none
local META = KEYS[6]
-- include clock
local call = redis.call
local seen = call('HGET', KEYS[4], ARGV[1])
if seen then
  return redis.status_reply(seen)
end
local _, _, _, marks, ms, id, task, body = struct.unpack('<BBBBdBc0Bc0I4c0', ARGV[3])
local number = tonumber(call('HGET', KEYS[7], task) or nil)
local head = tonumber(call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
local meta = call('HMGET', META, 'clock', 'seq', 'classes')
local now_us, seq = server_us(), (tonumber(meta[2]) or 0) + 1
local now_ms = math.floor(now_us / 1000)
local due = (marks % 2 == 1 and ms + now_ms or ms) * 1000 + seq % 1000
local is_used = math.floor((tonumber(meta[3]) or 0) / 2 ^ (string.byte(body) % 8)) % 2 == 1
-- Every sixteenth goes the long way, which also sweeps the request window.
if not (number and head and head <= due and is_used and now_us >= (tonumber(meta[1]) or 0) and seq % 16 > 0) then
  return false
end
if call('HSETNX', KEYS[2], id, string.sub(body, 1, 1) .. struct.pack('<I2', number) .. string.sub(body, 2)) == 0 then
  return false
end
call('ZADD', KEYS[1], string.format('%.0f', due), id)
call('HINCRBY', KEYS[3], 'created', 1)
call('RPUSH', KEYS[5], ARGV[1] .. struct.pack('<d', now_ms))
call('HSET', KEYS[4], ARGV[1], 'c')
call('HSET', META, 'clock', string.format('%.0f', now_us), 'seq', seq)
return redis.status_reply('c')
