-- keys: lease run machines totals gone
-- A machine is proved gone: its row goes, the proof stays with the run. Sent twice, it finds the proof.
local owner, fence, name, machine_id, proof = take(), take(), take(), take(), take()
if not leads(owner, fence) then return {'fenced'} end
local old = redis.call('HGET', K.machines, name)
if not old then return {redis.call('HEXISTS', K.gone, name) == 1 and 'gone' or 'absent'} end
local row = read_row(old)
if not row then return {'corrupt', name} end
if type(row.machine_id) == 'string' and row.machine_id ~= machine_id then return {'other_id'} end
local plan = new_plan()
plan_change(plan, name, row, '')
redis.call('HSET', K.gone, name, proof)
-- An abandoned name outlives its run: nothing else would let this key expire.
if redis.call('HGET', K.run, 'released') ~= '0' then redis.call('EXPIRE', K.gone, 7 * DAY_S) end
apply(plan, {})
return {'gone'}
