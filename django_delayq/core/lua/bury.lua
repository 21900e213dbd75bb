#!lua flags=allow-oom
-- Jobs that nobody will try again: into the morgue; what was gated behind them becomes live.
-- ARGV    3 worker; 4 entries (lib/settle)
-- Returns one '1' or '0' (the lease was lost) for each.
-- Events  buried, exhausted, poison, undecodable ...; cancelled
-- include keys clock begin sweep window body state due wake bytes payload gate event settle grave
local seen = replay()
if seen then
  return seen
end
-- Only what this run held is buried: payloads that came meanwhile are gated content and live on.
local function payloads_of_run(id, taken)
  local records = {}
  for at = 1, #taken, 16 do
    local digest = string.sub(taken, at, at + 15)
    local value = redis.call('HGET', PAYLOAD, field_of(id, digest, '0')) or ''
    records[#records + 1] = struct.pack('<I4c0', #value, value)
  end
  return struct.pack('<I4', #records) .. table.concat(records)
end

return settle_all(ARGV[4], function(e, s)
  local body = redis.call('HGET', BODY, e.id) or ''
  if has_flag(s, STOPPING) then
    gives_way(e, s, body)
    return
  end
  if has_mark(e, MARK_CRASH) then
    s.crashes = math.min(s.crashes + 1, 65535)
  end
  if e.outcome ~= 'undecodable' then
    s.failures = math.min(s.failures + 1, 65535)
  end
  local merged = is_merged(body)
  dig(e.id, body, s, e, merged and payloads_of_run(e.id, s.taken) or '')
  if merged then
    finish_payloads(e.id, s.taken)
  end
  if merged and redis.call('HEXISTS', GATE, e.id) == 0 and has_payloads(e.id) then
    put_rest(e.id, body)
  else
    end_run(e.id)
  end
  count('buried', 1)
  emit_entry(e, e.outcome)
end)
