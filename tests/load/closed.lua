-- wrk's part of tests/load/loadtest: the closed loop.
--   wrk … -s closed.lua URL -- MANIFEST SEED MAX_REQUESTS HEADER…
-- Each line of the manifest is PATH TAB HEADER TAB HEADER …; PATH holds a body. Every request sends one
-- of them, drawn at random. Writes "PROGRESS seconds answers not-2xx" about every second, and at the
-- end "RESULT" with numbers and "STATUS code count" lines, which generators.py reads.
local requests = {}
statuses = {} -- global: done() reads each thread's
local sent, limit, answers, bad, began, last = 0, 0, 0, 0, 0, 0
local threads = {}

local function read_all(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("*a")
    file:close()
    return text
end

local function add_header(headers, line)
    local name, value = line:match("^([^:]+):%s*(.*)$")
    headers[name] = value
end

function setup(thread)
    table.insert(threads, thread)
end

function init(arguments)
    limit = tonumber(arguments[3])
    math.randomseed(tonumber(arguments[2]))
    for line in io.lines(arguments[1]) do
        local headers, path = {}, nil
        for field in line:gmatch("[^\t]+") do
            if path then add_header(headers, field) else path = field end
        end
        for i = 4, #arguments do add_header(headers, arguments[i]) end
        table.insert(requests, wrk.format("POST", nil, headers, read_all(path)))
    end
    began = os.time()
    last = began
end

function request()
    sent = sent + 1
    return requests[math.random(#requests)]
end

function response(status)
    statuses[status] = (statuses[status] or 0) + 1
    answers = answers + 1
    if status < 200 or status > 299 then bad = bad + 1 end
    local now = os.time()
    if now ~= last then
        last = now
        io.write(string.format("PROGRESS %d %d %d\n", now - began, answers, bad))
        io.flush()
    end
    if sent >= limit then
        wrk.thread:stop()
        io.write("LIMIT\n") -- wrk itself would wait until its time is over: it is interrupted
        io.flush()
    end
end

function done(summary, latency)
    local errors, all = summary.errors, {}
    for _, thread in ipairs(threads) do
        for status, count in pairs(thread:get("statuses")) do
            all[status] = (all[status] or 0) + count
        end
    end
    for status, count in pairs(all) do io.write(string.format("STATUS %d %d\n", status, count)) end
    io.write(string.format("RESULT %d %d %d %d %d %d %d", summary.duration, summary.requests,
        summary.bytes, errors.connect, errors.read, errors.write, errors.timeout))
    for _, share in ipairs({50, 75, 90, 95, 99, 99.9, 99.99}) do
        io.write(string.format(" %d", latency:percentile(share)))
    end
    io.write(string.format(" %d\n", latency.max))
end
