-- Return a number as Redis takes it: with all of its digits.
local function text(number)
  return string.format('%.0f', number)
end
