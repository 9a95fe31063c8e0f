-- keys: lease control run tomb cancel
-- Apply a cancel command once and ack it; for a run not yet seen it is remembered for a day.
local owner, fence, entry, run_id, by, reason, now = take(), take(), take(), take(), take(), take(), take()
if not leads(owner, fence) then return {'fenced'} end
local run = redis.call('HMGET', K.run, 'state', 'cancel_requested_at', 'cancel_entry')
local word
if not run[1] then
  if redis.call('EXISTS', K.tomb) == 1 then
    word = 'ended'
  else
    word = 'remembered'
    if redis.call('EXISTS', K.cancel) == 0 then
      redis.call('HSET', K.cancel, 'at', now, 'by', by, 'reason', reason, 'entry', entry)
      redis.call('EXPIRE', K.cancel, DAY_S)
    end
  end
elseif entry ~= '' and run[3] == entry then
  word = 'flagged'
elseif TERMINAL[run[1]] then
  word = 'ended'
elseif run[2] ~= '' then
  word = 'already'
else
  redis.call('HSET', K.run, 'cancel_requested_at', now, 'cancel_by', by, 'cancel_reason', reason, 'cancel_entry', entry)
  word = 'flagged'
end
consume(K.control, entry)
return {word}
