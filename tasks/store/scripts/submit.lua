-- Accept a request: write its record and push its message, unless the queue is full. If a request with its id
-- or its Idempotency-Key exists, return that request instead.
-- KEYS: the queue's lists by priority; the first has the queue's name.
-- ARGV: cap (0: none), index of the list, message, its delivery tag; then id, request as JSON, model, channel
-- of its events, queue timeout (s), time limit (s, '' if none), Redis name of its Idempotency-Key ('' if
-- none), fingerprint of the client's request, version of the request's format, the request without its prompt,
-- its owner.
-- Returns {id, 1 if accepted or 0 if it existed, state, time created}, {} if the key was used for another
-- request, {-(waiting + 1)} if the queue is full.
local cap, list, message, tag = tonumber(ARGV[1]), KEYS[tonumber(ARGV[2])], ARGV[3], ARGV[4]
local id, timeout, limit, name, fingerprint = ARGV[5], ARGV[9], ARGV[10], ARGV[11], ARGV[12]

local function known(other)
  local r = redis.call('HMGET', record_of(other), 'state', 'created')
  return r[1] and { other, 0, r[1], r[2] }
end

if name ~= '' then
  local print, other = string.match(redis.call('GET', name) or '', '(%S+) (%S+)')
  local found = other and known(other)
  if found then return print == fingerprint and found or {} end
end
local taken = known(id)
if taken then return taken end
local full = refusal(KEYS, cap)
if full then return { full } end

-- First the list: a message without a record does nothing, but a record without a message waits for the janitor.
push(KEYS[1], list, message)
local key, t = record_of(id), now()
local created = string.format('%.6f', t)
redis.call('HSET', key, 'state', 'queued', 'request', ARGV[6], 'model', ARGV[7], 'watch', ARGV[8],
  'v', ARGV[13], 'outline', ARGV[14], 'owner', ARGV[15], 'queue_timeout', timeout, 'created', created, 'attempt', 0, 'seq', 0, 'tokens', 0,
  'list', list, 'message', message, 'tag', tag)
local latest = t + tonumber(timeout)
if limit ~= '' then
  redis.call('HSET', key, 'time_limit', limit)
  latest = math.min(latest, t + tonumber(limit))
end
if name ~= '' then
  redis.call('SET', name, fingerprint .. ' ' .. id)
  redis.call('HSET', key, 'name', name)
end
redis.call('ZADD', P .. 'active', t, id)
redis.call('ZADD', P .. 'deadlines', latest, id)
return { id, 1, 'queued', created }
