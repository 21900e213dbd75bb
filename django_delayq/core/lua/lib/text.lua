-- Return a whole number as Redis takes it: with all of its digits.
local function text(number)
  return string.format('%d', number)
end
