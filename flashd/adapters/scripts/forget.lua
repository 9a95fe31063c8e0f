-- keys: lease runs names remembered
-- Drop what is kept of runs whose time of being remembered is over, a bounded number a call.
local owner, fence, now, limit = take(), take(), take(), take()
if not leads(owner, fence) then return {'fenced'} end
local due = redis.call('ZRANGEBYSCORE', K.remembered, '-inf', now, 'LIMIT', '0', limit)
for _, hash10 in ipairs(due) do
  local run_id = redis.call('HGET', K.names, hash10)
  if run_id then redis.call('ZREM', K.runs, run_id) end
  redis.call('HDEL', K.names, hash10)
  redis.call('ZREM', K.remembered, hash10)
end
return {'ok'}
