-- Publish a request's events on one more channel. ARGV: id, channel.
-- Returns the state, or nil when there is no such request. The latest eight channels are kept.
local key = record_of(ARGV[1])
local r = redis.call('HMGET', key, 'state', 'watch')
if not r[1] then return nil end
local channels = {}
for channel in string.gmatch(r[2] or '', '%S+') do
  if channel ~= ARGV[2] then table.insert(channels, channel) end
end
table.insert(channels, ARGV[2])
while #channels > 8 do table.remove(channels, 1) end
redis.call('HSET', key, 'watch', table.concat(channels, ' '))
return r[1]
