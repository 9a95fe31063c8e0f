-- keys: lease run core events log progress machines totals
-- The step that makes a requested row live. When refused it says what became of the row; a row that is still
-- `requested` although the run moved on goes to `deleting` with its machine id, if the caller leads.
local write = read_write()
local name, deleting = take(), take()
local refused = refusal(write, false)
if refused and (refused[1] == 'replay' or refused[1] == 'illegal') then return refused end
local old = redis.call('HGET', K.machines, name)
local row = old and read_row(old) or nil
if old and not row then return {'corrupt', name} end
local fate = row and row.state or 'gone'
if not refused then
  if fate == 'requested' then
    local plan = plan_rows(write)
    if plan.corrupt then return {'corrupt', plan.corrupt} end
    return commit(write, plan)
  end
  refused = {'moved'}
end
if refused[1] ~= 'fenced' and fate == 'requested' then
  local plan = new_plan()
  plan_change(plan, name, row, deleting)
  apply(plan, {})
  fate = 'deleting'
end
return {refused[1], fate}
