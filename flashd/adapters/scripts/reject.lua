-- keys: lease source rejected events counters
-- Move an entry to `rejected`, with its event. Without the entry nothing is written: an earlier send or leader did it.
local owner, fence, channel, entry = take(), take(), take(), take()
local fields, event = take_list(), take_list()
local LOOK_BACK = 32
if not leads(owner, fence) then return {'fenced'} end
if not in_stream(K.source, entry) then
  redis.call('XACK', K.source, GROUP, entry)
  for _, item in ipairs(redis.call('XREVRANGE', K.rejected, '+', '-', 'COUNT', LOOK_BACK)) do
    if value_of(item[2], 'entry_id') == entry then return {'rejected'} end
  end
  return {'gone'}
end
append(K.rejected, EVENTS_KEEP_MS, fields)
if #event > 0 then redis.call('PUBLISH', channel, append(K.events, EVENTS_KEEP_MS, event)) end
redis.call('HINCRBY', K.counters, 'rejected', 1)
consume(K.source, entry)
return {'rejected'}
