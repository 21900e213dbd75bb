-- One fat entry for a finished attempt.
local function emit(outcome, id, run, worker, error_class)
  redis.call('XADD', EVENT, 'MAXLEN', '~', event_cap, '*', 'outcome', outcome, 'id', id, 'task', run.task,
    'key', run.key, 'due', run.due, 'started', run.started, 'ms', run.ms, 'attempt', run.attempt,
    'worker', worker, 'error', error_class)
end
