-- Remove the record of a request that was never queued. ARGV: id.
local key = record_of(ARGV[1])
if redis.call('HGET', key, 'state') == 'new' then redis.call('DEL', key) end
