-- Content that arrives beside or in place of durable content.
local function expect_durable_payloads()
  if not has_durable_payloads then
    has_durable_payloads = true
    redis.call('HSET', META, 'durable', '1')
  end
end

-- Marks the end of a plain job's generation that another one replaces.
local function mark_replaced(old, new)
  if not is_merged(old) and key_of(old) ~= key_of(new) then
    mark_end(key_of(old), 'done')
  end
end
