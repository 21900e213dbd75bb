-- Writes one complete entry for a finished attempt; `run` holds its texts (lib/settle), or is empty when no event is
-- wanted. A tombstone writes none, because no consumer reads them.
local function emit(outcome, id, run, worker, error_class)
  if run == '' or ended then
    return
  end
  local task, key, due, started, ms, attempt = struct.unpack('<Bc0Bc0Bc0Bc0Bc0Bc0', run)
  redis.call('XADD', EVENT, 'MAXLEN', '~', event_cap, '*', 'outcome', outcome, 'id', id, 'task', task, 'key', key,
    'due', due, 'started', started, 'ms', ms, 'attempt', attempt, 'worker', worker, 'error', error_class)
end
