#include "server/config_options.h"

#include <stddef.h>

#include "engine/base/size.h"

#define FIELD(name) offsetof(struct config, name)

#define RUNS  (COMMAND_SERVE | COMMAND_PREDICT)
#define TIMED (RUNS | COMMAND_BENCH)
#define SHOWS (COMMAND_PREDICT | COMMAND_DEVICES | COMMAND_INSPECT | COMMAND_BENCH)
#define ASKS  (COMMAND_SERVE | COMMAND_HEALTH)
#define ALL   (COMMAND_SERVE | COMMAND_HEALTH | SHOWS)

#define MODEL  "Model"
#define DEVICE "Device"
#define SERVER "Server"
#define ACCESS "Access"
#define LIMITS "Limits (what goes beyond them is refused, by name, unless it says otherwise)"
#define TIMES  "Times (seconds, or with ms, s, m)"
#define OUTPUT "Output"

#define KIB ((int64_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

const struct option config_options[] = {
    {"model", OPTION_TEXT, ALL & ~(COMMAND_DEVICES | COMMAND_HEALTH), FIELD(model), 0, 0, NULL,
     "MODEL", MODEL,
     "an .onnx file, a model folder, or the word digits: the digit classifier that is part of "
     "lensd "
     "(the same as the argument MODEL)"},
    {"model-name", OPTION_TEXT, COMMAND_SERVE, FIELD(model_name), 0, 0, NULL, "NAME", MODEL,
     "the name that requests call the model by, instead of its file's or folder's"},
    {"models", OPTION_TEXT, COMMAND_SERVE, FIELD(models), 0, 0, NULL, "FOLDER", MODEL,
     "serve every model of this folder instead of one: each sub-folder is a model, numbered "
     "sub-folders of it are its versions"},
    {"watch", OPTION_SWITCH, COMMAND_SERVE, FIELD(watch), 0, 0, "false", NULL, MODEL,
     "load models again when their files change, and take up and drop folders of --models"},
    {"top-k", OPTION_NUMBER, RUNS, FIELD(top_k), 1, 1000, "5", "N", MODEL,
     "how many predictions an image gets, unless a request asks for another number"},

    {"device", OPTION_TEXT, TIMED, FIELD(device), 0, 0, "auto", "DEVICE", DEVICE,
     "auto (a GPU if one is usable, else the CPU), cpu, cuda, cuda:N, a list such as "
     "cuda:0,cuda:1, or all"},
    {"precision", OPTION_CHOICE, TIMED | COMMAND_INSPECT, FIELD(precision), 0, 0, "auto",
     "fp32|bf16|fp16|int8|auto", DEVICE,
     "numbers of the forward pass; auto: the fastest that answers as fp32 does, which is measured "
     "when a model is loaded for the first time"},
    {"cache", OPTION_TEXT, TIMED | COMMAND_INSPECT, FIELD(cache), 0, 0, NULL, "FOLDER", DEVICE,
     "where the outcome of that is kept for the next start, or the word none; "
     "default: lensd in $XDG_CACHE_HOME or ~/.cache"},
    {"threads", OPTION_NUMBER, TIMED | COMMAND_INSPECT, FIELD(threads), 0, 1024, "0", "N", DEVICE,
     "threads of a forward pass on the CPU; 0: the cores this process may use, or one "
     "where the model is too small to share"},
    {"workers", OPTION_NUMBER, RUNS, FIELD(workers), 0, 1024, "0", "N", DEVICE,
     "threads that decode and resize images; 0: the cores this process may use"},
    {"fast-decode", OPTION_SWITCH, RUNS, FIELD(fast_decode), 0, 0, "false", NULL, DEVICE,
     "decode a JPEG that is much larger than the model's input at a half, a quarter or an eighth: "
     "up to four times as fast, with pixels that are no longer exactly Pillow's"},
    {"max-batch", OPTION_NUMBER, RUNS, FIELD(max_batch), 0, 256, "0", "N", DEVICE,
     "largest number of images in a forward pass; 0: what the model asks for, else 8"},
    {"memory", OPTION_TEXT, RUNS, FIELD(memory), 0, 0, "0", "BYTES", DEVICE,
     "what all models together may take of each device: weights, activations, batches; "
     "4G, or by device: cpu=2G,cuda:0=12G; 0: nine tenths of what it has"},
    {"gpu-memory", OPTION_BYTES, RUNS, FIELD(gpu_memory), 0, 1024 * 1024 * GIB, "0", "BYTES",
     DEVICE, "the same for each GPU in use, whichever they are; goes before --memory there"},

    {"profile", OPTION_SWITCH, COMMAND_INSPECT, FIELD(profile), 0, 0, "false", NULL, DEVICE,
     "run the model and print milliseconds and GFLOP/s of each layer, beside what this machine's "
     "arithmetic can do"},
    {"profile-batch", OPTION_NUMBER, COMMAND_INSPECT, FIELD(profile_batch), 1, 256, "1", "N",
     DEVICE, "images of the forward pass that --profile runs"},
    {"sort", OPTION_CHOICE, COMMAND_INSPECT, FIELD(profile_sort), 0, 0, "order", "order|time",
     DEVICE, "layers of --profile as they run, or the slowest first"},
    {"batch", OPTION_TEXT, COMMAND_BENCH, FIELD(batch), 0, 0, "1,8,32", "N,…", DEVICE,
     "batch sizes to time"},
    {"time", OPTION_SECONDS, COMMAND_BENCH, FIELD(bench_time), 0, 3600, "2", "TIME", DEVICE,
     "for each device and batch size, once they are loaded; seconds, or with ms, s, m"},

    {"max-delay-us", OPTION_NUMBER, COMMAND_SERVE, FIELD(max_delay_us), 0, 1000000, "2000", "N",
     DEVICE,
     "microseconds that an idle device may wait for more images, when arrivals and measured times "
     "say that more come out for it; 0: never"},

    {"host", OPTION_TEXT, COMMAND_SERVE | COMMAND_HEALTH, FIELD(host), 0, 0, "127.0.0.1", "ADDRESS",
     SERVER, "address to listen on; 0.0.0.0 or :: opens it to other machines"},
    {"port", OPTION_NUMBER, COMMAND_SERVE | COMMAND_HEALTH, FIELD(port), 0, 65535, "8080", "N",
     SERVER, "port to listen on; 0: any free one"},
    {"port-file", OPTION_TEXT, COMMAND_SERVE, FIELD(port_file), 0, 0, NULL, "FILE", SERVER,
     "write the port number to FILE once it is open; at the end FILE is removed, or emptied where "
     "--user may not remove it"},
    {"unix", OPTION_TEXT, ASKS, FIELD(unix_path), 0, 0, NULL, "PATH", SERVER,
     "listen on a unix-domain socket of this name instead of --host and --port, which are then not "
     "to "
     "be given as well"},
    {"unix-mode", OPTION_TEXT, COMMAND_SERVE, FIELD(unix_mode), 0, 0, "0660", "MODE", SERVER,
     "permissions of that socket; who may write to it may connect"},
    {"tls-cert", OPTION_TEXT, ASKS, FIELD(tls_cert), 0, 0, NULL, "FILE", SERVER,
     "serve HTTPS (TLS 1.2 and 1.3) with this certificate, PEM, its chain behind it; SIGHUP "
     "reads it again"},
    {"tls-key", OPTION_TEXT, COMMAND_SERVE, FIELD(tls_key), 0, 0, NULL, "FILE", SERVER,
     "the key of that certificate, PEM, not encrypted"},
    {"pid-file", OPTION_TEXT, COMMAND_SERVE, FIELD(pid_file), 0, 0, NULL, "FILE", SERVER,
     "write the number of the process to FILE, and remove it at the end"},
    {"user", OPTION_TEXT, COMMAND_SERVE, FIELD(user), 0, 0, NULL, "NAME", SERVER,
     "started as root, become this user (NAME:GROUP: and group) once the port is open"},
    {"core-dumps", OPTION_SWITCH, COMMAND_SERVE, FIELD(core_dumps), 0, 0, "false", NULL, SERVER,
     "allow core dumps and debuggers; they see photos and keys"},
    {"check", OPTION_SWITCH, COMMAND_SERVE, FIELD(check), 0, 0, "false", NULL, SERVER,
     "look whether settings, keys, certificate and model are in order, and end: 0 yes, 2 no"},
    {"http-threads", OPTION_NUMBER, COMMAND_SERVE, FIELD(http_threads), 1, 64, "1", "N", SERVER,
     "threads that read requests and write answers; one is enough for most machines"},
    {"config", OPTION_TEXT, ALL, FIELD(config_file), 0, 0, NULL, "FILE", SERVER,
     "read settings from a JSON file: {\"port\": 9000, \"max-body\": \"16M\"}"},

    {"api-keys", OPTION_TEXT, COMMAND_SERVE, FIELD(api_keys), 0, 0, NULL, "FILE", ACCESS,
     "answer only who sends an API key that is in FILE (a line: NAME sha256:HEX rate=N burst=N; "
     "lensd key makes one); SIGHUP reads it again"},
    {"admin-key-file", OPTION_TEXT, COMMAND_SERVE, FIELD(admin_key_file), 0, 0, NULL, "FILE",
     ACCESS, "the same for admins: who may load and unload models and change the log"},
    {"protect-health", OPTION_SWITCH, COMMAND_SERVE, FIELD(protect_health), 0, 0, "false", NULL,
     ACCESS, "ask for a key on health, metrics and the pages, too"},
    {"api-key-file", OPTION_TEXT, COMMAND_HEALTH, FIELD(api_key_file), 0, 0, NULL, "FILE", ACCESS,
     "send the API key that FILE holds, one line, the key itself; for a server that is run with "
     "--protect-health"},
    {"cors-origin", OPTION_TEXT, COMMAND_SERVE, FIELD(cors_origin), 0, 0, NULL, "ORIGIN", ACCESS,
     "let pages of this origin (https://app.example; several with commas; *: all) read the "
     "answers"},
    {"rate", OPTION_NUMBER, COMMAND_KEY, FIELD(key_rate), 0, 1000000, "0", "N", ACCESS,
     "requests a second that the key is good for; 0: any number"},
    {"burst", OPTION_NUMBER, COMMAND_KEY, FIELD(key_burst), 0, 1000000, "0", "N", ACCESS,
     "requests that may come at once; 0: those of a second"},

    {"max-body", OPTION_BYTES, COMMAND_SERVE, FIELD(max_body), 1, GIB, "64M", "BYTES", LIMITS,
     "bytes of a request's body"},
    {"max-upload-memory", OPTION_BYTES, COMMAND_SERVE, FIELD(max_upload_memory), 1, 1024 * GIB,
     "512M", "BYTES", LIMITS, "bytes of all bodies held at one time"},
    {"max-header", OPTION_BYTES, COMMAND_SERVE, FIELD(max_header), KIB, 64 * KIB, "16K", "BYTES",
     LIMITS, "bytes of a request's line and headers"},
    {"max-inflate-ratio", OPTION_NUMBER, COMMAND_SERVE, FIELD(max_inflate_ratio), 2, 100000, "100",
     "N", LIMITS, "bytes that a byte of a gzip or deflate body may become, beyond the first MiB"},
    {"max-images", OPTION_NUMBER, COMMAND_SERVE, FIELD(max_images), 1, 4096, "64", "N", LIMITS,
     "images in a request"},
    {"max-queue", OPTION_NUMBER, RUNS, FIELD(max_queue), 1, 1000000, "256", "N", LIMITS,
     "images admitted and not yet answered, for each model"},
    {"max-queue-bytes", OPTION_BYTES, COMMAND_SERVE, FIELD(max_queue_bytes), 0, 1024 * GIB, "256M",
     "BYTES", LIMITS, "bytes of images that wait for a worker, for each model; 0: no limit"},
    {"max-queue-ms", OPTION_NUMBER, COMMAND_SERVE, FIELD(max_queue_ms), 0, 3600000, "30000", "N",
     LIMITS,
     "milliseconds that an answer may take by prediction: what would take longer is refused at "
     "once; 0: no limit"},
    {"max-json-depth", OPTION_NUMBER, COMMAND_SERVE, FIELD(max_json_depth), 1, 512, "64", "N",
     LIMITS, "levels of nested JSON"},
    {"max-pixels", OPTION_NUMBER, RUNS, FIELD(max_pixels), 1, 1000000000, "50000000", "N", LIMITS,
     "width times height of an image"},
    {"max-side", OPTION_NUMBER, RUNS, FIELD(max_side), 1, 65535, "16384", "N", LIMITS,
     "width or height of an image"},
    {"max-scans", OPTION_NUMBER, RUNS, FIELD(max_scans), 1, 10000, "100", "N", LIMITS,
     "scans of a progressive JPEG"},
    {"max-connections", OPTION_NUMBER, COMMAND_SERVE, FIELD(max_connections), 1, 100000, "1024",
     "N", LIMITS, "open connections; further ones are not refused, they wait until one ends"},
    {"max-connections-per-address", OPTION_NUMBER, COMMAND_SERVE,
     FIELD(max_connections_per_address), 1, 100000, "512", "N", LIMITS,
     "open connections from one address"},

    {"header-timeout", OPTION_SECONDS, COMMAND_SERVE, FIELD(header_timeout), 0, 3600, "10", "TIME",
     TIMES, "for a request's line and headers to arrive; 0: as long as they like"},
    {"body-timeout", OPTION_SECONDS, COMMAND_SERVE, FIELD(body_timeout), 0, 3600, "60", "TIME",
     TIMES, "for a request's body to arrive; 0: as long as it likes"},
    {"idle-timeout", OPTION_SECONDS, COMMAND_SERVE, FIELD(idle_timeout), 1, 3600, "75", "TIME",
     TIMES, "that a connection may stay open without a request, or without reading its answer"},
    {"default-timeout", OPTION_SECONDS, COMMAND_SERVE, FIELD(default_timeout), 0, 3600, "0", "TIME",
     TIMES,
     "for a request from its first byte to its answer, where it has no X-Request-Timeout-Ms; what "
     "cannot be done in time is refused or dropped; 0: no limit"},
    {"drain-delay", OPTION_SECONDS, COMMAND_SERVE, FIELD(drain_delay), 0, 3600, "0", "TIME", TIMES,
     "between SIGTERM and the end of accepting, while /readyz already says 503"},
    {"grace", OPTION_SECONDS, COMMAND_SERVE, FIELD(grace), 0, 3600, "20", "TIME", TIMES,
     "for accepted requests to be answered after that"},

    {"log-format", OPTION_CHOICE, COMMAND_SERVE, FIELD(log_format), 0, 0, "text", "text|json|auto",
     OUTPUT, "form of the log on standard error; auto: text on a terminal, else json"},
    {"log-level", OPTION_CHOICE, COMMAND_SERVE, FIELD(log_level), 0, 0, "info",
     "debug|info|warn|error", OUTPUT, "lowest level written; info has a line for each request"},
    {"json", OPTION_SWITCH, SHOWS, FIELD(json), 0, 0, "false", NULL, OUTPUT,
     "print JSON instead of a table"},
};

const size_t config_option_count = COUNT_OF(config_options);
