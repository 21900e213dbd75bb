-- The parts of a body that the scripts read (core/records/frames.py): byte 1 priority, kind and version, bytes 2 and 3 the task.
-- TASK: name -> number, \0 number -> name. A body has the number, so a name is stored once and not in each job.
local function flags_of(body)
  return string.byte(body, 1) or 4
end

-- Marks of where a job waits: in a lane (64), or for quarantine. They count only in bodies of our version
-- (core/records/frames.py).
local IS_QUARANTINED = 128

-- Return the class in which the job waits.
local function class_of(body)
  local flags = flags_of(body)
  local marks = math.floor(flags / 32)
  if marks == 3 or marks == 7 then
    return LANE
  end
  return marks == 5 and QUARANTINE or flags % 8 + 1
end

-- Return the body with or without a mark.
local function with_body_mark(body, mark, is_set)
  local flags = flags_of(body)
  if math.floor(flags / 32) % 2 == 0 or (math.floor(flags / mark) % 2 == 1) == is_set then
    return body
  end
  return string.char(flags + (is_set and mark or -mark)) .. string.sub(body, 2)
end

local function without_quarantine(body)
  return with_body_mark(body, IS_QUARANTINED, false)
end

-- Return the group of a job, '' = none, and where its options begin. One in a lane has length and text behind its key.
local function group_of(body)
  if class_of(body) ~= LANE then
    return '', 20
  end
  local size = string.byte(body, 20) or 0
  return string.sub(body, 21, 20 + size), 21 + size
end

-- Return the options of a job with a group, '' without a group.
local function options_of(body)
  local group, at = group_of(body)
  return group ~= '' and #body > at and string.sub(body, at + 2, at + 1 + struct.unpack('<I2', body, at)) or ''
end

local function is_merged(body)
  return math.floor(flags_of(body) / 8) % 2 == 1
end

local function task_code_of(body)
  return string.sub(body, 2, 3)
end

-- Return the key of the generation, 16 bytes. A broken body may end inside it.
local function key_of(body)
  local key = string.sub(body, 4, 19)
  return #key < 16 and key .. string.rep('\0', 16 - #key) or key
end

local function with_key(body, key)
  return string.sub(body, 1, 3) .. key .. string.sub(body, 20)
end

local function task_name(code)
  return redis.call('HGET', TASK, '\0' .. code)
end

-- Return the two bytes that stand for a task name, or nil when no job of it was ever scheduled here.
local function find_task_code(name)
  local number = redis.call('HGET', TASK, name)
  return number and struct.pack('<I2', tonumber(number))
end

local function with_class_of(body, other)
  local flags = flags_of(body)
  return string.char(flags - flags % 8 + flags_of(other) % 8) .. string.sub(body, 2)
end

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

-- The names of the tasks whose bodies a reply has: the number, as the body has it -> the name. They are sent with every
-- reply, because a number means another task after the loss of Redis.
local tasks = {}

local function name_task_of(body)
  local code = task_code_of(body)
  if #code == 2 and not tasks[code] then
    tasks[code] = task_name(code) or nil
  end
end
