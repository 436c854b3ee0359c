-- Remove the record of a request that was never queued. ARGV: id.
local key = record_of(ARGV[1])
local r = redis.call('HMGET', key, 'state', 'name')
if r[1] == 'new' then
  redis.call('DEL', key)
  keep_name(ARGV[1], r[2], 0)
end
