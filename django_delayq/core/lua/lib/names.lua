-- The names of the tasks whose bodies a reply has: '<B n>' and n times '<c2 number><Bc0 name>', in front of it.
-- They are sent with every reply, because a number means another task after the loss of Redis.
-- exports tasks names name_task_of frame_of_names
-- The same as a map: the number, as the body has it -> the name.
tasks = {}
names = {}
local names_seen = {}

function name_task_of(body)
  local code = task_code_of(body)
  if #code == 2 and not names_seen[code] then
    names_seen[code] = true
    local name = task_name(code)
    tasks[code] = name or nil
    if name and #names < 255 then
      names[#names + 1] = code .. struct.pack('<Bc0', #name, name)
    end
  end
end

function frame_of_names()
  return string.char(#names) .. table.concat(names)
end
