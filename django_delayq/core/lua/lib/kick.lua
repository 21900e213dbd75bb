-- Brings jobs back from the morgue; shared by kick.lua and reserve.lua.
-- exports kick

local function gate_behind_run(id, body, due)
  local gated = redis.call('HGET', GATE, id)
  if gated then
    local gated_due, gated_body = read_gate(gated)
    mark_replaced(gated_body, body)
    if is_merged(body) then
      due, body = math.min(gated_due, due), gated_body
    end
  end
  redis.call('HSET', GATE, id, pack_gate(due, body))
end

local function make_live(id, body, due, old, record)
  if old then
    local current = tonumber(redis.call('ZSCORE', DUE[class_of(old)], id))
    leave_due(old, id)
    redis.call('HDEL', STATE, id)
    forget_failures(id)
    if is_merged(body) then
      -- Waiting content is not delayed.
      body, due = without_quarantine(old), math.min(due, current or due)
    else
      mark_replaced(old, body)
    end
  end
  local s = { timeouts = record.timeouts, releases = record.releases, buries = record.buries, kicks = record.kicks }
  increment(s, 'kicks')
  put_state(id, s)
  redis.call('HSET', BODY, id, body)
  put_due(body, text(due), id)
end

-- Makes the content of a record live, due at `ms`. Return k(icked), l(ive: a live job of the id prevents it), and how many
-- payloads came back. The job keeps the record's counts, unless it is gated: that content has no state of its own. In a
-- closed shard only for a live id.
local function bring_back(id, record, ms, replace)
  local body = without_quarantine(record.body) -- that of an undecodable job was buried as it was
  local merged, payloads = is_merged(body), record.payloads or {}
  local old = redis.call('HGET', BODY, id)
  if old and (task_code_of(old) ~= task_code_of(body) or is_merged(old) ~= merged or not (merged or replace)) then
    return 'l', 0
  end
  each_buried(record, mark_live)
  local due = tonumber(score_at(ms))
  local reserved = redis.call('ZSCORE', LEASE, id)
  local taken = merged and reserved and read_state(redis.call('HGET', STATE, id)).taken or ''
  for _, value in ipairs(merged and payloads or {}) do
    if #value > 32 then
      if is_durable(key_of_payload(value)) then
        expect_durable_payloads()
      end
      add_payload(id, digest_of(value), value, '0', taken)
    end
  end
  if reserved then
    gate_behind_run(id, body, due)
  else
    make_live(id, body, due, old, record)
  end
  count('kicked', 1)
  return 'k', merged and #payloads or 0
end

-- Brings a job back: the record of the named generation in this shard's morgue, the youngest one of the id, or `adopted`, a
-- function that returns one. Return the letter of kick.lua, and how many payloads came back.
function kick(id, key, ms, replace, adopted)
  local grave = not adopted and find_grave(id, key)
  if not grave and not adopted then
    return 'n'
  elseif closing and redis.call('HEXISTS', BODY, id) == 0 then
    return 'v' -- before anything is written: this shard may be a tombstone
  end
  local record = adopted and adopted() or grave and read_record(grave)
  if not record then
    return 'n'
  end
  local letter, payload_count = bring_back(id, record, ms, replace)
  if letter == 'k' and grave then
    delete_record(grave)
  end
  return letter, payload_count
end
