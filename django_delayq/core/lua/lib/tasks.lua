-- Return the two bytes that stand for a task name in this shard; a new name gets the next number.
local codes = {}

local function task_code(name)
  local code = codes[name] or find_task_code(name)
  if not code then
    local number = redis.call('HINCRBY', TASK, '\1', 1)
    code = struct.pack('<I2', number)
    redis.call('HSET', TASK, name, number, '\0' .. code, name)
  end
  codes[name] = code
  return code
end
