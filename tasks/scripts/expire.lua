-- End every request whose queue timeout is over. ARGV: time to live of a result (s). Returns how many.
local ids, n = redis.call('ZRANGEBYSCORE', P .. 'deadlines', 0, now(), 'LIMIT', 0, 100), 0
for _, id in ipairs(ids) do
  local key = record_of(id)
  local r = redis.call('HMGET', key, 'state', 'queue_timeout')
  redis.call('ZREM', P .. 'deadlines', id)
  if r[1] == 'queued' then
    unqueue(key)
    finish(id, 'expired', nil, 'queue_timeout', 'The request waited longer than its queue timeout of ' .. r[2] .. ' s and was not generated; retry later or raise --queue-timeout.', ARGV[1])
    n = n + 1
  end
end
return n
