-- Claim a request for a child, and raise the attempt number by one, unless the request is over, too late or
-- out of attempts. A child may ask again with the same fence, because the first answer may have been lost: it
-- gets the same answer.
-- ARGV: id, child id, most deaths, time to live of a result (s), the attempt's fence, number of deaths from
-- which the request is a suspect and is not claimed ('': claim it anyway), the newest request format that the
-- child knows (missing: any).
-- Returns {} when there is nothing to do, {0} for a suspect, {-format} for a request of a newer format, else
-- {attempt, request, queue_ms, ms since creation, ms from creation to the first token or -1, seq, owner}.
local id, child, max_deaths, ttl, fence = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local key, t = record_of(id), now()
local r = fields_of(id, 'state', 'attempt', 'request', 'created', 'claimed', 'first', 'seq', 'model',
  'queue_timeout', 'deaths', 'time_limit', 'fence', 'v', 'owner')
local state, attempt, created, limit = r[1], tonumber(r[2]), tonumber(r[4]), r[11]

local function answer(claimed)
  return { attempt, r[3], string.format('%.3f', (claimed - created) * 1000), string.format('%.3f', (t - created) * 1000),
    r[6] and string.format('%.3f', (tonumber(r[6]) - created) * 1000) or '-1', tonumber(r[7]), r[14] or '' }
end

if state ~= 'queued' and state ~= 'running' then return {} end
if state == 'running' and r[12] == fence then return answer(tonumber(r[5])) end
if ARGV[7] and tonumber(r[13] or 1) > tonumber(ARGV[7]) then return { -tonumber(r[13]) } end
local deaths = tonumber(r[10] or 0)
if ARGV[6] and ARGV[6] ~= '' and deaths >= tonumber(ARGV[6]) then return { 0 } end
redis.call('PUBLISH', P .. 'freed', r[8])
if is_past(limit, created, t) then
  finish_late(id, limit, ttl)
  return {}
end
if not r[5] then
  if t > created + tonumber(r[9]) then
    finish_expired(id, r[9], ttl)
    return {}
  end
  redis.call('LPUSH', P .. 'claims:' .. r[8], string.format('%.6f', t))
  redis.call('LTRIM', P .. 'claims:' .. r[8], 0, 31)
  redis.call('EXPIRE', P .. 'claims:' .. r[8], 86400)
end
if deaths >= max_deaths then
  finish(id, 'failed', nil, 'attempts_exhausted', 'The worker that ran this request died, ' .. max_deaths ..
    ' times without getting any further; it was given up.', ttl)
  return {}
end
attempt = attempt + 1
local claimed = tonumber(r[5]) or t
redis.call('HSET', key, 'state', 'running', 'attempt', attempt, 'fence', fence, 'child', child, 'claim_seq', r[7],
  'claimed', string.format('%.6f', claimed))
redis.call('ZADD', P .. 'running', t, id)
if limit then
  redis.call('ZADD', P .. 'deadlines', created + tonumber(limit) + 1, id)
else
  redis.call('ZREM', P .. 'deadlines', id)
end
return answer(claimed)
