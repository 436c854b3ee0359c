-- A child takes a request: attempt number up by one, unless it is over, expired or out of attempts.
-- ARGV: id, child id, attempts at most, time to live of a result (s).
-- Returns {} when there is nothing to do, else
-- {attempt, request, queue_ms, ms since creation, ms from creation to the first token or -1, seq}.
local id, child, max_attempts, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local key, t = record_of(id), now()
local r = redis.call('HMGET', key, 'state', 'attempt', 'request', 'created', 'claimed', 'first', 'seq', 'model', 'queue_timeout')
local state, attempt, created = r[1], tonumber(r[2]), tonumber(r[4])
if state ~= 'queued' and state ~= 'running' then return {} end
redis.call('PUBLISH', P .. 'freed', r[8])
if state == 'queued' then
  if t > created + tonumber(r[9]) then
    finish(id, 'expired', nil, 'queue_timeout', 'The request waited longer than its queue timeout of ' .. r[9] .. ' s and was not generated; retry later or raise --queue-timeout.', ttl)
    return {}
  end
  redis.call('LPUSH', P .. 'claims:' .. r[8], string.format('%.6f', t))
  redis.call('LTRIM', P .. 'claims:' .. r[8], 0, 31)
end
if attempt >= max_attempts then
  finish(id, 'failed', nil, 'attempts_exhausted', 'The worker running this request died ' .. attempt .. ' times; it was given up.', ttl)
  return {}
end
attempt = attempt + 1
local claimed = tonumber(r[5]) or t
redis.call('HSET', key, 'state', 'running', 'attempt', attempt, 'child', child, 'claimed', string.format('%.6f', claimed))
redis.call('ZREM', P .. 'deadlines', id)
redis.call('ZADD', P .. 'running', t, id)
return { attempt, r[3], string.format('%.3f', (claimed - created) * 1000), string.format('%.3f', (t - created) * 1000),
  r[6] and string.format('%.3f', (tonumber(r[6]) - created) * 1000) or '-1', tonumber(r[7]) }
