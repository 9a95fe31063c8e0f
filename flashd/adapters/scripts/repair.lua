-- keys: lease run core active unreleased runs repaired
-- Make the indexes agree with one run's hash, which is the truth.
local owner, fence, op, run_id = take(), take(), take(), take()
if not leads(owner, fence) then return {'fenced'} end
local told = told_before(op, run_id)
if told then return told end
local run = redis.call('HMGET', K.run, 'state', 'released', 'accepted_at', 'finished_at')
local known = run[1] and true or false
local ended = known and TERMINAL[run[1]] or false
local answer = {'ok'}

local function belongs(index, wanted, score, what)
  local there = redis.call('ZSCORE', index, run_id) and true or false
  if there == wanted then return end
  if wanted then
    redis.call('ZADD', index, tonumber(score) and score or '0', run_id)
  else
    redis.call('ZREM', index, run_id)
  end
  answer[#answer + 1] = (wanted and 'put back into ' or 'taken out of ') .. what
end

belongs(K.active, known and not ended, run[3], 'active')
belongs(K.unreleased, ended and run[2] ~= '1', run[4], 'unreleased')
if known then belongs(K.runs, true, run[3], 'runs') end
if known and run[2] ~= '1' and redis.call('HEXISTS', K.core, 'state') == 0 then
  answer[#answer + 1] = 'its private state is lost; it cannot go on'
end
return tell_once(op, run_id, answer)
