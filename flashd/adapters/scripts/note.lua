-- keys: lease map
-- Set or (empty text) remove entries of a small private map.
local owner, fence, changes = take(), take(), take_list()
if not leads(owner, fence) then return {'fenced'} end
for i = 1, #changes, 2 do
  if changes[i + 1] == '' then
    redis.call('HDEL', K.map, changes[i])
  else
    redis.call('HSET', K.map, changes[i], changes[i + 1])
  end
end
return {'ok'}
