#!lua
-- Bring a job back from the morgue: due now or after a delay, with its failures reset.
-- ARGV    3 id; 4 key (16 bytes, or '' = the id's youngest record); 5 delay ms; 6 '1' = replace a live job
-- Returns kicked, live (a live job of the id prevents it), '' (no such record) or v (the shard is closed and the id not
--         live here: it has to come back in another one).
-- Events  none
-- include keys clock begin sweep window settled body state due wake bytes payload gate grave durable kick
local seen = replay()
if seen then
  return seen
end
if closing and redis.call('HEXISTS', BODY, ARGV[3]) == 0 then
  return 'v'
end
local before = head()
local reply = (kick(ARGV[3], ARGV[4], now_ms + tonumber(ARGV[5]), ARGV[6] == '1'))
wake_if_earlier(before)
write_marks()
remember(reply)
return reply
