-- Queue every accepted request whose message is lost again, at the head of its list; end one that was found lost
-- too often without getting any further.
-- ARGV: unacked hash, seconds since a request was accepted or last looked at, most requests to look at, how often
-- a request may be found lost, time to live of a result (s).
-- Returns the ids that were queued again, then the ids that were ended.
-- One script moves a message between its list and the reserved messages, so a message in neither is lost.
local t, found, ended = now(), {}, {}

local function is_lost(tag, list, message)
  if not tag or not list or redis.call('HEXISTS', ARGV[1], tag) == 1 then return false end
  return not redis.call('LPOS', list, message, 'RANK', -1)
end

-- The message with a new tag: a worker that had the message may still acknowledge the old tag.
local function renamed(message, tag, fresh)
  local from, to = string.find(message, tag, 1, true)
  if tag == '' or not from then return message end
  return string.sub(message, 1, from - 1) .. fresh .. string.sub(message, to + 1)
end

-- How often in a row a request was found lost, this time included.
local function count_loss(id, seq)
  local key = record_of(id)
  local before = redis.call('HMGET', key, 'lost', 'lost_seq')
  local n = tonumber(seq) > tonumber(before[2] or -1) and 1 or tonumber(before[1] or 0) + 1
  redis.call('HSET', key, 'lost', n, 'lost_seq', seq)
  return n
end

local function rescue(id, tag, list, message)
  local fresh = string.format('%s.%.6f', id, t)
  local again = renamed(message, tag, fresh)
  redis.call('RPUSH', list, again)
  ring(string.match(list, '^[^\6]*'))
  -- The cause is unknown, so this counts as part of a death: a request that is often lost must end.
  wait_again(id, list, again, fresh, 0.25)
  redis.call('HINCRBY', P .. 'requeued', 'found_by_janitor', 1)
  table.insert(found, id)
end

local function give_up(id)
  finish(id, 'failed', nil, 'attempts_exhausted', 'Its message was lost ' .. ARGV[4] ..
    ' times without the request getting any further; it was given up. The log of the API says when.', ARGV[5])
  table.insert(ended, id)
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'active', '-inf', t - tonumber(ARGV[2]), 'LIMIT', 0, ARGV[3])) do
  local r = fields_of(id, 'state', 'tag', 'list', 'message', 'seq')
  if r[1] ~= 'queued' and r[1] ~= 'running' then
    redis.call('ZREM', P .. 'active', id)
    redis.call('ZREM', P .. 'deadlines', id)
  else
    redis.call('ZADD', P .. 'active', t, id)
    if is_lost(r[2], r[3], r[4]) then
      if count_loss(id, r[5]) > tonumber(ARGV[4]) then give_up(id) else rescue(id, r[2], r[3], r[4]) end
    end
  end
end
-- A script that Redis refused in its middle may have left a request here that runs no more.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'running', '-inf', t - tonumber(ARGV[2]), 'LIMIT', 0, ARGV[3])) do
  if fields_of(id, 'state')[1] ~= 'running' then redis.call('ZREM', P .. 'running', id) end
end
return { found, ended }
