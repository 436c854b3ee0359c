-- End every request whose time is over. ARGV: time to live of a result (s). Returns how many.
-- A running request's worker ends it a moment earlier, unless the worker is paused or gone.
local t, n = now(), 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'deadlines', 0, t, 'LIMIT', 0, 100)) do
  local key = record_of(id)
  local r = fields_of(id, 'state', 'claimed', 'queue_timeout', 'created', 'time_limit')
  redis.call('ZREM', P .. 'deadlines', id)
  if (r[1] == 'queued' or r[1] == 'running') and is_past(r[5], r[4], t) then
    unqueue(key)
    finish_late(id, r[5], ARGV[1])
    n = n + 1
  elseif r[1] == 'queued' and not r[2] then
    unqueue(key)
    finish_expired(id, r[3], ARGV[1])
    n = n + 1
  end
end
return n
