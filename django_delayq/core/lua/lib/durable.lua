-- What comes in, beside or in place of durable content.
local function expect_durable_payloads()
  if not has_durable_payloads then
    has_durable_payloads = true
    redis.call('HSET', META, 'durable', '1')
  end
end

-- A plain job's generation is over: another one has its place.
local function mark_replaced(old, new)
  if not is_merged(old) and key_of(old) ~= key_of(new) then
    mark_end(key_of(old), 'done')
  end
end
