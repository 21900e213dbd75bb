#!lua
-- Brings a job back from the morgue: due now or after a delay, failures forgotten.
-- ARGV    3 id; 4 key (16 bytes, or '' = the youngest grave of the id); 5 delay ms; 6 '1' = replace a live job
-- Returns kicked, live (a live job of the id stands in the way) or '' (no such grave).
-- Events  none
-- include keys clock begin sweep window body state due wake bytes payload gate grave
local seen = replay()
if seen then
  return seen
end
local id, key, delay, replace = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1'

local function put_back_payloads(frame, taken)
  local n, at = struct.unpack('<I4', frame)
  for _ = 1, n do
    local value
    value, at = struct.unpack('<I4c0', frame, at)
    if #value > 32 then
      add_payload(id, digest_of(value), value, '0', taken)
    end
  end
end

local function gate_behind_run(body, due)
  local gated = redis.call('HGET', GATE, id)
  if gated and is_merged(body) then
    local gated_due, gated_body = read_gate(gated)
    redis.call('HSET', GATE, id, pack_gate(math.min(gated_due, due), gated_body))
  else
    redis.call('HSET', GATE, id, pack_gate(due, body))
  end
end

local function make_live(body, due, old)
  if old then
    redis.call('ZREM', DUE[class_of(old)], id)
    redis.call('HDEL', STATE, id)
    forget_failures(id)
    if is_merged(body) then
      body = old
    end
  end
  redis.call('HSET', BODY, id, body)
  put_due(body, text(due), id)
end

local function kick()
  local grave = find_grave(id, key)
  if not grave then
    return ''
  end
  local body, payloads = body_of_record(redis.call('HGET', GRAVE, grave))
  local merged = is_merged(body)
  local old = redis.call('HGET', BODY, id)
  if old and (task_code_of(old) ~= task_code_of(body) or is_merged(old) ~= merged or not (merged or replace)) then
    return 'live'
  end
  local due = tonumber(score_at(now_ms + delay))
  local reserved = redis.call('ZSCORE', LEASE, id)
  if merged then
    put_back_payloads(payloads, reserved and read_state(redis.call('HGET', STATE, id)).taken or '')
  end
  if reserved then
    gate_behind_run(body, due)
  else
    make_live(body, due, old)
  end
  fill_in(grave)
  count('kicked', 1)
  return 'kicked'
end

local before = head()
local reply = kick()
wake_if_earlier(before)
remember(reply)
return reply
