-- The test build's source of time: microseconds that the test wrote into the shard's meta, whichever key that is.
local function server_us()
  for _, key in ipairs(KEYS) do
    if string.sub(key, -5) == ':meta' then
      return tonumber(redis.call('HGET', key, 'test_clock'))
    end
  end
end
