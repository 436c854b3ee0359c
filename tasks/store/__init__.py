"""Everything kept in Redis: records, logs, registrations, and the scripts that change them."""
