#!lua
-- Bring jobs back from the morgue, with their failures reset.
-- ARGV    3 entries (lib/each) with the key of the record, or '' = the id's youngest record; 4 ms when the first is due;
--         5 '1' = ms is a delay from now; 6 ms between one due time and the next; 7 '1' = replace live jobs
-- Returns one letter for each: k(icked), l(ive: a live job of the id prevents it), n(o such record, or
--         it cannot be read), v (the shard is closed and the id not live here: it has to come back in another one) or
--         e (the same, and no such record).
-- Events  none
-- include keys clock begin window marks body state due wake payload unite gate grave kick each
local seen = replay()
if seen then
  return seen
end
local ms, step, replace = tonumber(ARGV[4]) + (ARGV[5] == '1' and now_ms or 0), tonumber(ARGV[6]), ARGV[7] == '1'

local function kick(id, key)
  local grave = find_grave(id, key)
  local record = grave and read_record(grave)
  if grave and not record then
    return 'n'
  elseif closing and redis.call('HEXISTS', BODY, id) == 0 then
    return grave and 'v' or 'e'
  elseif not grave then
    return 'n'
  end
  local letter, payload_count = bring_back(id, record, math.floor(ms), replace)
  if letter == 'k' then
    delete_record(grave)
    ms = ms + step
  end
  return letter, payload_count
end

local before = head()
local letters = for_each(kick)
wake_if_earlier(before)
return answer(letters)
