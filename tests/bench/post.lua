-- wrk: posts one file as the raw body, again and again.
--   wrk -t1 -c8 -d10s -s post.lua URL -- FILE
-- Ends with one line of numbers that http_bench.py reads.
local request_text

function init(arguments)
    local file = assert(io.open(arguments[1], "rb"))
    wrk.method = "POST"
    wrk.body = file:read("*a")
    wrk.headers["Content-Type"] = "image/jpeg"
    file:close()
    request_text = wrk.format()
end

function request()
    return request_text
end

function done(summary, latency)
    local errors = summary.errors
    io.write(string.format("RESULT %.2f %.3f %.3f %d %d %d\n",
        summary.requests / (summary.duration / 1e6),
        latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
        summary.requests, errors.status,
        errors.connect + errors.read + errors.write + errors.timeout))
end
