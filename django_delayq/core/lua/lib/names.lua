-- The names of the tasks whose bodies a reply has: the number, as the body has it -> the name. They are sent with every
-- reply, because a number means another task after the loss of Redis.
-- exports tasks name_task_of
tasks = {}

function name_task_of(body)
  local code = task_code_of(body)
  if #code == 2 and not tasks[code] then
    tasks[code] = task_name(code) or nil
  end
end
