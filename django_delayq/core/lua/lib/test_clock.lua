-- The test build's source of time: microseconds that the test wrote into the shard's meta.
local function server_us()
  return tonumber(redis.call('HGET', META, 'test_clock'))
end
