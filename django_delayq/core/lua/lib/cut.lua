-- Leaves out the arguments of a body that are larger than the reader wants, and returns their size.
-- Return where the arguments begin (core/records/frames.py). In a body that cannot be read they are everything behind its key.
local function arguments_at(body)
  local flags, first = flags_of(body), 20
  if math.floor(flags / 32) == 1 and math.floor(flags / 16) % 2 == 1 and #body >= 21 then
    local options = struct.unpack('<I2', body, 20)
    first = 22 + options
  end
  return first <= #body + 1 and first or 20
end

-- Return the body, or the part that is not left out, and how many bytes were left out. `most` nil = none are.
local function cut(body, most)
  if not most or #body <= most then
    return body, 0
  end
  local first = arguments_at(body)
  local size = #body - first + 1
  if size <= most then
    return body, 0
  end
  return string.sub(body, 1, first - 1), size
end
