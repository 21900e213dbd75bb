#!lua
-- Bring jobs back from the morgue, with their failures reset.
-- ARGV    3 entries (lib/each) with the key of the record, or '' = the id's youngest record. One of which the record lies
--         in another shard has that record, and the name of its task, '' = the body is broken and stays as it is; the call
--         has a request id that follows from the record, and discard.lua deletes it afterwards. 4 ms when the first is
--         due; 5 '1' = ms is a delay from now; 6 ms between one due time and the next; 7 '1' = replace live jobs
-- Returns one letter for each: k(icked), l(ive: a live job of the id prevents it), n(o such record, or
--         it cannot be read) or v (the shard is closed and the id not live here: it has to come back in another one).
-- Events  none
-- include keys clock begin window marks body state due payload gate grave kick each seen
local ms, step, replace = tonumber(ARGV[4]) + (ARGV[5] == '1' and now_ms or 0), tonumber(ARGV[6]), ARGV[7] == '1'

-- Return a record of another shard, where another number stands for its task.
local function adopt(packed, task)
  local record = cmsgpack.unpack(packed)
  if #record.body >= 3 then
    local code = task ~= '' and task_code(task) or '\255\255'
    record.body = string.sub(record.body, 1, 1) .. code .. string.sub(record.body, 4)
  end
  return record
end

local before = head()
local letters = for_each(function(id, key, packed, task)
  local adopted = packed ~= '' and function() return adopt(packed, task) end
  local letter, payload_count = kick(id, key, math.floor(ms), replace, adopted)
  ms = letter == 'k' and ms + step or ms
  return letter, payload_count
end)
wake_if_earlier(before)
return answer(letters)
