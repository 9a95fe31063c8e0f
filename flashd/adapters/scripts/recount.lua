-- keys: lease machines totals repaired
-- Count the ledger's totals anew. A row that cannot be read counts as one machine without a price.
local owner, fence, op = take(), take(), take()
if not leads(owner, fence) then return {'fenced'} end
local told = told_before(op, 'machines')
if told then return told end
local answer, count, micro_usd = {'ok'}, 0, 0
local rows = redis.call('HGETALL', K.machines)
for i = 1, #rows, 2 do
  local row = read_row(rows[i + 1])
  if row then
    local one, price = weight(row)
    count, micro_usd = count + one, micro_usd + price
  else
    count = count + 1
    answer[#answer + 1] = 'the row of ' .. rows[i] .. ' cannot be read'
  end
end
local old = redis.call('HMGET', K.totals, 'count', 'micro_usd')
if (tonumber(old[1]) or 0) ~= count or (tonumber(old[2]) or 0) ~= micro_usd then
  redis.call('HSET', K.totals, 'count', whole(count), 'micro_usd', whole(micro_usd))
  answer[#answer + 1] = 'totals set to ' .. whole(count) .. ' machines, ' .. whole(micro_usd) .. ' micro-dollars an hour'
end
return tell_once(op, 'machines', answer)
