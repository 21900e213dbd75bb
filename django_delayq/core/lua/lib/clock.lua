-- The only source of time. A test build replaces this file with one that reads a number set by the test.
local function server_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
