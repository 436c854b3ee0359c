-- Queue every accepted request whose message is lost again, at the head of its list.
-- ARGV: unacked hash, seconds since a request was accepted or last looked at, most requests to look at.
-- Returns the ids that were queued again.
-- One script moves a message between its list and the reserved messages, so a message in neither is lost.
local t, found = now(), {}

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

for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'active', '-inf', t - tonumber(ARGV[2]), 'LIMIT', 0, ARGV[3])) do
  local r = redis.call('HMGET', record_of(id), 'state', 'tag', 'list', 'message')
  if r[1] ~= 'queued' and r[1] ~= 'running' then
    redis.call('ZREM', P .. 'active', id)
  else
    redis.call('ZADD', P .. 'active', t, id)
    if is_lost(r[2], r[3], r[4]) then
      local fresh = string.format('%s.%.6f', id, t)
      local message = renamed(r[4], r[2], fresh)
      redis.call('RPUSH', r[3], message)
      ring(string.match(r[3], '^[^\6]*'))
      -- The cause is unknown, so this counts as part of a death: a request that is often lost must end.
      wait_again(id, r[3], message, fresh, 0.25)
      redis.call('HINCRBY', P .. 'requeued', 'found_by_janitor', 1)
      table.insert(found, id)
    end
  end
end
return found
