#!lua
-- Bring a job back from the morgue of a shard of another epoch. Its record there is deleted afterwards, by discard.lua.
-- ARGV    1 a request id that is derived from the record: any caller that kicks it too, or again, gets the same reply;
--         3 id; 4 delay ms; 5 '1' = replace a live job; 6 task, '' = the body is broken and stays as it is; 7 the record,
--         its body without its task's number unless it is broken
-- Returns k(icked), l(ive: a live job of the id prevents it) or v (a closed shard, and the id is not live here).
-- Events  none
-- include keys clock begin window marks body state due payload gate grave kick
local seen = replay()
if seen then
  return seen
end
local id, task, record, before = ARGV[3], ARGV[6], cmsgpack.unpack(ARGV[7]), head()
if closing and redis.call('HEXISTS', BODY, id) == 0 then
  return 'v' -- before anything is written: this shard may be a tombstone
end
if task ~= '' then
  record.body = string.sub(record.body, 1, 1) .. task_code(task) .. string.sub(record.body, 2)
end
local reply = bring_back(id, record, now_ms + tonumber(ARGV[4]), ARGV[5] == '1')
if reply == 'k' then
  wake_if_earlier(before)
  write_marks()
  remember(reply)
end
return reply
