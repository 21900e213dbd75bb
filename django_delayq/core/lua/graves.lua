#!lua flags=no-writes
-- Return records of the morgue.
-- ARGV    3 names of records (id \0 key) one after another, 'I2c0' each; 4 the maximum of bytes of arguments returned
--         for each (lib/cut), or of the data of its payloads; '' or missing = all
-- Returns the names of the tasks and 'I2c0 name, I4 bytes left out, I4c0 record' for each that exists; no more than fit
--         into one MiB, the last of them whole: the others have to be requested in another call.
-- Events  none
-- include keys clock begin body names grave cut
local REPLY_BYTES = 1024 * 1024
-- Data that is left out was read all the same, which blocks Redis meanwhile.
local READ_BYTES = 4 * 1024 * 1024
local most = tonumber(ARGV[4] or '')

-- Return how many bytes the data of framed payloads has (schedule_frames.unpack_payload).
local function size_of(payloads)
  local n, at = struct.unpack('<I4', payloads)
  local size = 0
  for _ = 1, n do
    local length = struct.unpack('<I4', payloads, at)
    size = size + length - 33 - (string.byte(payloads, at + 4 + 32) or 0)
    at = at + 4 + length
  end
  return size
end

-- Return a record without the arguments of its body, or without its payloads (their number stays), where they are too
-- large.
local function cut_record(record)
  if not most or #record <= most then
    return record, 0
  end
  local body, payloads = body_of_record(record)
  local front = string.sub(record, 1, #record - #payloads - #body - 4)
  local short, without = cut(body, most)
  local data = payloads ~= '' and size_of(payloads) or 0
  if data > most then
    payloads, without = string.sub(payloads, 1, 4), without + data
  end
  return front .. struct.pack('<I4c0', #short, short) .. payloads, without
end

local frame, at = ARGV[3], 1
local records, size, read = {}, 0, 0
while at <= #frame and size < REPLY_BYTES and read < READ_BYTES do
  local grave
  grave, at = struct.unpack('<I2c0', frame, at)
  local record = redis.call('HGET', GRAVE, grave)
  if record then
    name_task_of(body_of_record(record))
    read = read + #record
    local short, without = cut_record(record)
    records[#records + 1] = struct.pack('<I2c0I4I4c0', #grave, grave, without, #short, short)
    size = size + #short
  end
end
return frame_of_names() .. table.concat(records)
