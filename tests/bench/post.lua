-- wrk: posts one file, again and again: as the raw body, or as the form field FIELD.
--   wrk -t1 -c8 -d10s -s post.lua URL -- FILE [FIELD]
-- With API_KEY in the environment it sends that, too. Ends with one line of numbers that http_bench.py reads.
local request_text

function init(arguments)
    local file = assert(io.open(arguments[1], "rb"))
    wrk.method = "POST"
    wrk.body = file:read("*a")
    wrk.headers["Content-Type"] = "image/jpeg"
    wrk.headers["X-API-Key"] = os.getenv("API_KEY")
    file:close()
    if arguments[2] then
        wrk.headers["Content-Type"] = "multipart/form-data; boundary=XboundaryX"
        wrk.body = '--XboundaryX\r\nContent-Disposition: form-data; name="' .. arguments[2] ..
            '"; filename="photo.jpg"\r\nContent-Type: image/jpeg\r\n\r\n' .. wrk.body ..
            "\r\n--XboundaryX--\r\n"
    end
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
