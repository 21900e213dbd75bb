-- Byte order, as sorted sets use it: Lua's own `<` on strings follows the server's locale.
local function comes_before(a, b)
  local shorter = math.min(#a, #b)
  for i = 1, shorter do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end
