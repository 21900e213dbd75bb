#!lua flags=no-writes
-- Return attempts of jobs that were acked before they began, and whose end is not stored yet.
-- ARGV    3 worker: only its attempts; '' = all; 4 only those that began before this moment (ms), '' = whenever; 5 ...
--         names of workers whose attempts are left out. What does not fit is left for a later call, so the choice is made
--         here.
-- Returns {tasks: code -> name; {id, when it began in ms, body, state, payloads} of each}. At most 250, or 4 MiB.
-- Events  none
-- include keys clock begin body
local MOST, REPLY_BYTES = 250, 4 * 1024 * 1024
local attempts, size = {}, 0
local before = tonumber(ARGV[4]) or math.huge
local others = {}
for place = 5, #ARGV do
  others[ARGV[place]] = true
end

-- Return an attempt that can be read and is selected. One that cannot be read is left out: nobody can settle it, and it must
-- not hide the others.
local function selected(value)
  local is_read, one = pcall(cmsgpack.unpack, value)
  if is_read and type(one) == 'table' and type(one[2]) == 'number' and type(one[3]) == 'string' and type(one[4]) == 'table'
    and one[2] < before and (ARGV[3] == '' or one[4].worker == ARGV[3]) and not others[one[4].worker] then
    return one
  end
end

local entries = redis.call('HGETALL', BEGUN)
for i = 1, #entries, 2 do
  local value = entries[i + 1]
  local one = #attempts < MOST and size < REPLY_BYTES and selected(value)
  if one then
    name_task_of(one[3])
    attempts[#attempts + 1] = one
    size = size + #value
  end
end
return cmsgpack.pack({ tasks, attempts })
