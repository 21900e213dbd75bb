#!lua flags=no-writes
-- Return attempts of jobs that were acked before they began, and whose end is not stored yet.
-- ARGV    3 worker: only its attempts; '' = all; 4 only those that began before this moment (ms), '' = whenever; 5 ...
--         names of workers whose attempts are left out. What does not fit is left for a later call, so the choice is made
--         here.
-- Returns the names of the tasks, '<I2 n>' and for each '<d begun ms>', id, state, body, payloads (lib/payload, nothing of
--         a plain job) as 'Bc0 I4c0 I4c0 I4c0'. At most 250, or 4 MiB.
-- Events  none
-- include keys clock begin body names state
local MOST, REPLY_BYTES = 250, 4 * 1024 * 1024
local runs, size = {}, 0
local before = tonumber(ARGV[4]) or math.huge
local others = {}
for place = 5, #ARGV do
  others[ARGV[place]] = true
end

local function is_selected(began, packed)
  local worker = read_state(packed).worker
  return began < before and (ARGV[3] == '' or worker == ARGV[3]) and not others[worker]
end

local entries = redis.call('HGETALL', BEGUN)
for i = 1, #entries, 2 do
  local value = entries[i + 1]
  local began, packed, body = struct.unpack('<dI4c0I4c0', value)
  if #runs < MOST and size < REPLY_BYTES and is_selected(began, packed) then
    local id = string.sub(entries[i], 9)
    name_task_of(body)
    runs[#runs + 1] = struct.pack('<dBc0', began, #id, id) .. string.sub(value, 9)
    size = size + #value
  end
end
return frame_of_names() .. struct.pack('<I2', #runs) .. table.concat(runs)
