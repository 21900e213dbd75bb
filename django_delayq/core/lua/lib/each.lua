-- Applies a function to each of many generations that the caller names. Includes: begin sweep window due wake.

-- Calls `act(id, key)` for each of the entries 'Bc0 id, Bc0 key' of a frame; the letters that it returns, one after
-- another, are the reply of the call.
local function for_each(frame, act)
  local before = head()
  local answers, at = {}, 1
  while at <= #frame do
    local id, key
    id, key, at = struct.unpack('<Bc0Bc0', frame, at)
    answers[#answers + 1] = act(id, key)
  end
  wake_if_earlier(before)
  local reply = table.concat(answers)
  remember(reply)
  return reply
end
