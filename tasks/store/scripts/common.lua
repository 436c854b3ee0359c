local P = 'inference:'

local function record_of(id) return P .. 'request:' .. id end
local function log_of(id) return P .. 'log:' .. id end

local function is_error(reply) return type(reply) == 'table' and reply.err ~= nil end

local function is_foreign(reply) return is_error(reply) and string.find(reply.err, 'WRONGTYPE', 1, true) ~= nil end

-- What a command finds; nothing if a key of another type has the name.
local function found_by(...)
  local reply = redis.pcall(...)
  if is_foreign(reply) then return {} end
  if is_error(reply) then error(reply) end
  return reply
end

-- Fields of a request's record; none if a key of another type has its name.
local function fields_of(id, ...) return found_by('HMGET', record_of(id), ...) end

-- Move the times of everything that is not over, but not beyond t.
local function shift_times(seconds, t)
  local function moved(time) return string.format('%.6f', math.min(tonumber(time) + seconds, t)) end
  local fields = { 'created', 'claimed', 'first' }
  for _, id in ipairs(found_by('ZRANGE', P .. 'active', 0, -1)) do
    local r = fields_of(id, unpack(fields))
    for i, field in ipairs(fields) do
      if r[i] then redis.call('HSET', record_of(id), field, moved(r[i])) end
    end
    if r[1] then redis.call('ZADD', P .. 'deadlines', 'XX', 'INCR', moved(r[1]) - tonumber(r[1]), id) end
  end
  for _, index in ipairs({ 'active', 'running', 'leases' }) do
    local found = found_by('ZRANGE', P .. index, 0, -1, 'WITHSCORES')
    for i = 1, #found, 2 do redis.call('ZADD', P .. index, moved(found[i + 1]), found[i]) end
  end
  for _, model in ipairs(found_by('HKEYS', P .. 'models')) do redis.call('DEL', P .. 'claims:' .. model) end
end

-- Redis's time in seconds. Scripts ask for it every second while the service lives. So a longer step means that
-- the clock was set, or that Redis or the whole service was away. Nobody waited in that time, and no worker could
-- renew a lease: it is left out. A script calls this before it reads a time that is kept.
local MOST_STEP_S = 5
local function now()
  local raw = redis.call('TIME')
  local t = tonumber(raw[1]) + tonumber(raw[2]) / 1e6
  local last = redis.call('GET', P .. 'clock')
  local step = t - (tonumber(last or t))
  if math.abs(step) > MOST_STEP_S then shift_times(step, t) end
  if not last or math.abs(step) >= 1 then redis.call('SET', P .. 'clock', string.format('%.6f', t)) end
  return t
end

-- Wake one worker that waits for a queue. One token is enough: the worker that takes a message rings again if
-- more messages wait.
local function ring(queue)
  if redis.call('EXISTS', P .. 'bell:' .. queue) == 0 then redis.call('LPUSH', P .. 'bell:' .. queue, 1) end
end

-- The answer to a push if the queue of these lists is full, else nil.
-- cap: most messages that may wait; 0: any number.
local function refusal(lists, cap)
  local waiting = 0
  for i = 1, #lists do waiting = waiting + redis.call('LLEN', lists[i]) end
  return cap > 0 and waiting >= cap and -(waiting + 1) or nil
end

local function push(queue, list, message)
  redis.call('LPUSH', list, message)
  ring(queue)
end

-- Keep a message that can't be read for people; the latest thousand are kept, of each the beginning.
local function bury(queue, message, why)
  redis.call('LPUSH', P .. 'dead_letters', cjson.encode({ queue = queue, why = why,
    time = string.format('%.3f', now()), message = string.sub(message, 1, 10000) }))
  redis.call('LTRIM', P .. 'dead_letters', 0, 999)
  redis.call('HINCRBY', P .. 'totals', 'dead_letters', 1)
end

-- Append one event to the log, number it, and return it as JSON.
-- body: the event's JSON without braces and number; end_json: '' unless it is the last event; tokens: number
-- generated so far; bytes: what the log takes so far, as the record has it.
local ENTRY_BYTES = 16
local function log_event(id, seq, body, end_json, tokens, bytes)
  local event = '{"s":' .. seq .. ',' .. body
  if end_json ~= '' then event = event .. ',"end":' .. end_json end
  event = event .. '}'
  -- Where a key of another type has the log's name, the request must still end.
  local reply = redis.pcall('XADD', log_of(id), seq .. '-0', 'e', event)
  if is_error(reply) and not is_foreign(reply) then error(reply) end
  redis.call('HSET', record_of(id), 'seq', seq, 'tokens', tokens,
    'bytes', (tonumber(bytes) or 0) + #event + ENTRY_BYTES)
  return event
end

-- Collect an event for every channel in watch (names separated by spaces).
local function collect(posts, watch, id, event)
  for channel in string.gmatch(watch or '', '%S+') do
    posts[channel] = posts[channel] or {}
    table.insert(posts[channel], '["' .. id .. '",' .. event .. ']')
  end
end

local function publish(posts)
  for channel, events in pairs(posts) do
    redis.call('PUBLISH', channel, '[' .. table.concat(events, ',') .. ']')
  end
end

-- Take a waiting request's message out of its list. Returns whether a place became free.
local function unqueue(key)
  local r = redis.call('HMGET', key, 'list', 'message', 'model')
  if not r[1] or not r[2] then return false end
  local removed = redis.call('LREM', r[1], 1, r[2])
  if removed > 0 then redis.call('PUBLISH', P .. 'freed', r[3]) end
  return removed > 0
end

-- Note that a reserved request's message is in its list again: the request waits, and its last attempt may
-- write no more. If that attempt delivered anything new, earlier deaths are forgotten.
-- charge: how much of a death the attempt counts as.
local function wait_again(id, list, message, tag, charge)
  local key = record_of(id)
  local r = redis.call('HMGET', key, 'state', 'seq', 'claim_seq', 'deaths')
  redis.call('HSET', key, 'state', 'queued', 'list', list, 'message', message, 'tag', tag)
  if r[1] ~= 'running' then return end
  redis.call('ZREM', P .. 'running', id)
  local before = tonumber(r[2]) > tonumber(r[3] or 0) and 0 or tonumber(r[4] or 0)
  if charge > 0 then redis.call('HSET', key, 'deaths', before + charge) end
end

-- Keep a request's Idempotency-Key as long as its record, or delete it now (ttl 0).
local function keep_name(id, name, ttl)
  if not name or string.match(redis.call('GET', name) or '', '%S+$') ~= id then return end
  if tonumber(ttl) > 0 then redis.call('EXPIRE', name, ttl) else redis.call('DEL', name) end
end

-- Keep a finished request for the dashboards. r: the record's created, model, name, child.
local function remember(id, r, state, end_json, t)
  redis.call('HINCRBY', P .. 'totals', state, 1)
  redis.call('LPUSH', P .. 'recent', '{"id":"' .. id .. '","model":' .. cjson.encode(r[2]) .. ',"child":'
    .. cjson.encode(r[4] or cjson.null) .. ',"created":' .. r[1] .. ',"finished":' .. string.format('%.6f', t)
    .. ',"end":' .. end_json .. '}')
  redis.call('LTRIM', P .. 'recent', 0, 99)
end

-- Of a finished request's record keep only what an answer needs, and note what its record and log take.
-- outline: the request without its prompt; nil if the last release accepted it.
local RECORD_BYTES = 6000
local function slim(id, outline, bytes)
  local key = record_of(id)
  if outline then redis.call('HSET', key, 'request', outline) end
  redis.call('HDEL', key, 'message', 'list', 'tag', 'outline')
  local size = RECORD_BYTES + redis.call('HSTRLEN', key, 'request') + (tonumber(bytes) or 0)
  redis.call('RPUSH', P .. 'results', id .. ' ' .. size)
  redis.call('INCRBY', P .. 'results_bytes', size)
end

-- Note that a request is finished: set its state and time to live, update the indexes, push the outcome for
-- the metrics.
local function settle(id, state, end_json, itl_json, ttl)
  local t, key = now(), record_of(id)
  local r = redis.call('HMGET', key, 'created', 'model', 'name', 'child', 'outline', 'bytes')
  redis.call('HSET', key, 'state', state, 'finished', string.format('%.6f', t))
  redis.call('EXPIRE', key, ttl)
  redis.call('EXPIRE', log_of(id), ttl)
  redis.call('ZREM', P .. 'running', id)
  redis.call('ZREM', P .. 'deadlines', id)
  redis.call('ZREM', P .. 'active', id)
  -- An expired request was never generated, so the client may send it again.
  keep_name(id, r[3], state == 'expired' and 0 or ttl)
  slim(id, r[5], r[6])
  local e2e = (t - tonumber(r[1])) * 1000
  redis.call('LPUSH', P .. 'outcomes',
    '{"id":"' .. id .. '","model":' .. cjson.encode(r[2]) .. ',"e2e_ms":' .. string.format('%.3f', e2e)
    .. ',"end":' .. end_json .. ',"itl_ms":' .. (itl_json ~= '' and itl_json or '[]') .. '}')
  redis.call('LTRIM', P .. 'outcomes', 0, 9999)
  remember(id, r, state, end_json, t)
end

-- End a request from outside its worker, with an error.
local function finish(id, state, reason, code, message, ttl)
  local t, key = now(), record_of(id)
  local r = redis.call('HMGET', key, 'seq', 'watch', 'tokens', 'prompt_tokens', 'created', 'claimed', 'attempt', 'first',
    'bytes')
  local waited = ((tonumber(r[6]) or t) - tonumber(r[5])) * 1000
  local tail = {
    state = state,
    finish_reason = reason,
    error = { code = code, message = message },
    usage = { prompt_tokens = tonumber(r[4]) or 0, completion_tokens = tonumber(r[3]) or 0 },
    timings = {
      queue_ms = waited,
      predicted_n = tonumber(r[3]) or 0,
      attempts = tonumber(r[7]) or 0,
      ttft_ms = r[8] and (tonumber(r[8]) - tonumber(r[5])) * 1000 or 0,
    },
  }
  local end_json = cjson.encode(tail)
  local posts = {}
  local seq, tokens = (tonumber(r[1]) or 0) + 1, tonumber(r[3]) or 0
  collect(posts, r[2], id, log_event(id, seq, '"t":"","k":[]', end_json, tokens, r[9]))
  publish(posts)
  settle(id, state, end_json, '', ttl)
end

-- Whether a request's time limit (s, or false) is over.
local function is_past(limit, created, t)
  return limit and t >= tonumber(created) + tonumber(limit)
end

local function finish_late(id, limit, ttl)
  finish(id, 'failed', nil, 'request_timeout', 'The request took longer than its time limit of ' .. limit ..
    ' s and was stopped.', ttl)
end

local function finish_expired(id, timeout, ttl)
  finish(id, 'expired', nil, 'queue_timeout', 'The request waited longer than its queue timeout of ' .. timeout ..
    ' s and was not generated; retry later or raise --queue-timeout.', ttl)
end
