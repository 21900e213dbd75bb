#!lua flags=no-writes
-- Records of the morgue.
-- ARGV    3 graves (id \0 key) one after another, 'I2c0' each; 4 an id: then its graves, and ARGV[3] is empty
-- Returns the names of the tasks and 'I2c0 grave, I4c0 record' for each that is there; of those of ARGV[3] no more than
--         make one MiB, the last of them whole: the others have to be asked for in another call.
-- Events  none
-- include keys clock begin body names grave
local REPLY_BYTES = 1024 * 1024

local graves = {}
if ARGV[4] ~= '' then
  graves = redis.call('ZRANGEBYLEX', MORGUE_ID, '[' .. ARGV[4] .. '\0', '(' .. ARGV[4] .. '\1', 'LIMIT', 0, 250)
end
local frame, at = ARGV[3], 1
while at <= #frame do
  local grave
  grave, at = struct.unpack('<I2c0', frame, at)
  graves[#graves + 1] = grave
end
local records, size = {}, 0
for _, grave in ipairs(graves) do
  if size >= REPLY_BYTES and ARGV[4] == '' then
    break
  end
  local record = redis.call('HGET', GRAVE, grave)
  if record then
    name_task_of(body_of_record(record))
    records[#records + 1] = struct.pack('<I2c0I4c0', #grave, grave, #record, record)
    size = size + #record
  end
end
return frame_of_names() .. table.concat(records)
