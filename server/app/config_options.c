/* The table of options: name, kind, range, default, commands, help. */
#include "server/app/config_options.h"

#include <stddef.h>

#include "engine/base/size.h"

#define FIELD(name) offsetof(struct config, name), sizeof(((struct config *)0)->name)

#define LABELS (COMMAND_SERVE | COMMAND_PREDICT)
#define RUNS   (LABELS | COMMAND_EMBED)
#define TIMED  (RUNS | COMMAND_BENCH)
#define SHOWS  (COMMAND_PREDICT | COMMAND_DEVICES | COMMAND_INSPECT | COMMAND_BENCH)
#define ASKS   (COMMAND_SERVE | COMMAND_HEALTH)
#define ALL    (RUNS | COMMAND_HEALTH | SHOWS | COMMAND_QUANTIZE)

#define MODEL  "Model"
#define TASK   "Answers (defaults for requests that do not set these)"
#define DEVICE "Device"
#define SERVER "Server"
#define ACCESS "Access"
#define LIMITS "Limits (an error names the limit that a request exceeds, unless noted)"
#define TIMES  "Times (seconds, or with ms, s, m)"
#define OUTPUT "Output"

#define KIB ((int64_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

/* The members of struct option from `kind` to `max`; SWITCH also gives `fallback` and `value`. */
#define TEXT(commands, field)              OPTION_TEXT, commands, FIELD(field), 0, 0
#define CHOICE(commands, field)            OPTION_CHOICE, commands, FIELD(field), 0, 0
#define SWITCH(commands, field)            OPTION_SWITCH, commands, FIELD(field), 0, 0, "false", NULL
#define NUMBER(commands, field, min, max)  OPTION_NUMBER, commands, FIELD(field), min, max
#define BYTES(commands, field, min, max)   OPTION_BYTES, commands, FIELD(field), min, max
#define SECONDS(commands, field, min, max) OPTION_SECONDS, commands, FIELD(field), min, max

const struct option config_options[] = {
    {"model", TEXT(ALL & ~(COMMAND_DEVICES | COMMAND_HEALTH), model), NULL, "MODEL", MODEL,
     "an .onnx file, a model folder, or digits, the built-in digit classifier; the same as the "
     "argument MODEL"},
    {"model-name", TEXT(COMMAND_SERVE, loader.model_name), NULL, "NAME", MODEL,
     "name of the model in requests, instead of the name of its file or folder"},
    {"models", TEXT(COMMAND_SERVE | COMMAND_PULL, loader.models), NULL, "FOLDER", MODEL,
     "serve every model in this folder instead of one: each sub-folder is a model, its numbered "
     "sub-folders are versions",
     "folder of models to put the new model into; default: the current folder"},
    {"immich", TEXT(COMMAND_SERVE, immich), NULL, "FOLDER", MODEL,
     "serve the models in this cache folder of Immich's machine-learning service, under Immich's "
     "names, and answer Immich's server; the first request for a model loads it, and 5 minutes "
     "without a request unload it, unless --load and --idle-unload are given. lensd also reads "
     "some of the variables IMMICH_… and MACHINE_LEARNING_…"},
    {"watch", SWITCH(COMMAND_SERVE, loader.watch), MODEL,
     "reload models when their files change; with --models, also add and remove models when their "
     "folders appear or disappear"},
    {"default-model", TEXT(COMMAND_SERVE, model_host.default_model), NULL, "NAME", MODEL,
     "the model for requests that name none; default: the only model, or the pipeline of "
     "which all other models are stages; without either, such requests get 400"},
    {"load", CHOICE(COMMAND_SERVE, loader.is_lazy), "eager", "eager|lazy", MODEL,
     "when models are loaded. eager: at the start; lazy: on the first request for a model, which "
     "waits until it is loaded. A model's lensd.json may override this"},
    {"preload", TEXT(COMMAND_SERVE, loader.preload), NULL, "NAME,NAME", MODEL,
     "with --load lazy, load these models at the start"},
    {"idle-unload", SECONDS(COMMAND_SERVE, model_host.idle_unload_ms, 0, 604800), "0", "TIME",
     MODEL,
     "unload a model after this time without a request for it, such as 5m; the next request loads "
     "it again; 0: never. A model's lensd.json, or a request's ?keep_alive=, may override this"},
    {"ready", CHOICE(COMMAND_SERVE, model_host.ready_strict), "any", "any|strict", MODEL,
     "with --models, when /readyz returns 200 after the start. any: once one model serves; strict: "
     "while every model present at the start serves"},
    {"top-k", NUMBER(LABELS, http.top_k, 1, 1000), "5", "N", MODEL,
     "predictions per image, unless the request sets another number"},

    {"size", TEXT(COMMAND_PREDICT | COMMAND_EMBED, size), NULL, "WIDTHxHEIGHT", MODEL,
     "input size, such as 640x480, if the file leaves height and width free; default: the size in "
     "the model's configuration, else 224x224"},
    {"calibrate", TEXT(COMMAND_QUANTIZE, calibrate), NULL, "PHOTOS", MODEL,
     "folder of photos typical for the model, searched with its sub-folders; give about 100. At "
     "most 256 are used, every fifth only for the report"},
    {"output", TEXT(COMMAND_QUANTIZE | COMMAND_PULL, output), NULL, "OUT", MODEL,
     "the new model folder, which must not exist; also -o; default: MODEL-int8",
     "the new model folder, which must not exist; also -o; default: REPO in --models"},
    {"target", CHOICE(COMMAND_QUANTIZE, is_for_avx2), "vnni", "vnni|avx2", MODEL,
     "the CPUs to quantize for. vnni: CPUs with VNNI, AMX or arm64's dot product. avx2: also older "
     "x86 CPUs; weights have 7 bits (ONNX Runtime's reduce_range)"},

    {"confidence", TEXT(LABELS, confidence), NULL, "N", TASK,
     "detectors: drop boxes whose score is not above N, 0 to 1; the default of this and the next "
     "six options is in the model's lensd.json, else that of the model's framework"},
    {"iou", TEXT(LABELS, iou), NULL, "N", TASK,
     "detectors: drop a box that overlaps a better one of its class by more than N (intersection "
     "over union), 0 to 1"},
    {"max-detections", NUMBER(LABELS, task_options.max_detections, 1, 1000), NULL, "N", TASK,
     "detectors: maximum number of boxes per image"},
    {"classes", TEXT(LABELS, classes), NULL, "CLASS,CLASS", TASK,
     "detectors and segmenters: answer with only these classes (indices or labels)"},
    {"agnostic", SWITCH(LABELS, agnostic), TASK,
     "detectors: let boxes of different classes suppress each other, too"},
    {"normalize", SWITCH(RUNS, normalize), TASK, "embeddings: scale the vectors to length 1"},
    {"masks", TEXT(LABELS, masks), NULL, "rle|polygon|png", TASK,
     "segmenters: write masks as COCO's run lengths, as outlines, or as PNG pictures; default: "
     "rle"},

    {"device", TEXT(TIMED, device), "auto", "DEVICE", DEVICE,
     "auto (a GPU if one is usable, else the CPU), cpu, cuda, cuda:N, a list such as "
     "cuda:0,cuda:1, or all"},
    {"precision", CHOICE(TIMED | COMMAND_INSPECT, model_host.precision), "auto",
     "fp32|tf32|bf16|fp16|int8|auto", DEVICE,
     "arithmetic of the forward pass; tf32: GPUs; auto: the fastest whose answers agree with fp32, "
     "measured when a model is first loaded"},
    {"cache", TEXT(TIMED | COMMAND_INSPECT, cache), NULL, "FOLDER", DEVICE,
     "folder that stores measurements (precision, kernels) for the next start, or none to store "
     "nothing; default: lensd in $XDG_CACHE_HOME or ~/.cache"},
    {"threads", NUMBER(TIMED | COMMAND_INSPECT | COMMAND_QUANTIZE, model_host.threads, 0, 1024),
     "0", "N", DEVICE,
     "CPU threads of a forward pass; 0: the cores this process may use, or 1 if the model is too "
     "small to gain from more"},
    {"workers", NUMBER(RUNS, model_host.workers, 0, 1024), "0", "N", DEVICE,
     "threads that decode and resize images; an additional thread takes small images while the "
     "others decode pictures of 4 megapixels or more; 0: the cores this process may use"},
    {"fast-decode", SWITCH(RUNS, model_host.fast_decode), DEVICE,
     "decode JPEGs much larger than the model's input at a half, a quarter or an eighth of their "
     "size: up to four times as fast, but the pixels no longer match Pillow's exactly"},
    {"max-batch", NUMBER(RUNS, model_host.max_batch, 0, 256), "0", "N", DEVICE,
     "maximum number of images in one forward pass; 0: the model's own setting, else 8"},
    {"memory", TEXT(RUNS, memory), "0", "BYTES", DEVICE,
     "limit for all models together on each device (weights, activations, batches): 4G, or per "
     "device: cpu=2G,cuda:0=12G; 0: three quarters of the memory that the process may use, nine "
     "tenths of a GPU's memory"},
    {"gpu-memory", BYTES(RUNS, gpu_memory, 0, 1024 * 1024 * GIB), "0", "BYTES", DEVICE,
     "limit for all models together on each GPU in use; overrides --memory for GPUs"},
    {"old-libheif", SWITCH(RUNS | COMMAND_INSPECT | COMMAND_QUANTIZE, old_libheif), DEVICE,
     "also read AVIF and HEIC with a libheif older than 1.23: a small hostile file can then use "
     "memory beyond all limits"},

    {"profile", SWITCH(COMMAND_INSPECT, profile), DEVICE,
     "run the model and print each layer's milliseconds and GFLOP/s, and the peak rate of this "
     "machine"},
    {"profile-batch", NUMBER(COMMAND_INSPECT, profile_batch, 1, 256), "1", "N", DEVICE,
     "images in the pass that --profile runs"},
    {"sort", CHOICE(COMMAND_INSPECT, profile_by_time), "order", "order|time", DEVICE,
     "order of the layers in --profile: as they run, or the slowest first"},
    {"batch", TEXT(COMMAND_BENCH, batch), "1,8,32", "N,…", DEVICE, "batch sizes to time"},
    {"time", SECONDS(COMMAND_BENCH, bench_time, 0, 3600), "2", "TIME", DEVICE,
     "time to spend on each device and batch size; seconds, or with ms, s, m"},

    {"faces", TEXT(COMMAND_SERVE, faces), NULL, "FILE", MODEL,
     "keep a registry of faces in FILE, for register and recognize of DeepStack's API; lensd "
     "creates FILE, which holds names and vectors but no photos"},

    {"host", TEXT(COMMAND_SERVE | COMMAND_HEALTH, http.host), "127.0.0.1", "ADDRESS", SERVER,
     "address to listen on; 0.0.0.0 or :: accepts connections from other machines",
     "address of the server; 0.0.0.0 and :: stand for this machine"},
    {"port", NUMBER(COMMAND_SERVE | COMMAND_HEALTH, http.port, 0, 65535), "8080", "N", SERVER,
     "port to listen on; 0: any free port", "port of the server"},
    {"port-file", TEXT(COMMAND_SERVE, port_file), NULL, "FILE", SERVER,
     "write the port number to FILE once the port is open; at exit FILE is removed, or emptied if "
     "--user may not remove it"},
    {"admin-port", NUMBER(COMMAND_SERVE, http.admin_port, 0, 65535), "0", "N", SERVER,
     "second port on --host for health, metrics, pages and admin requests, with its own thread and "
     "connections, so that it answers when the other port is full; 0: none"},
    {"grpc-port", NUMBER(COMMAND_SERVE, http.grpc_port, 0, 65535), "0", "N", SERVER,
     "port on --host for the Open Inference Protocol over gRPC (HTTP/2, with TLS if --tls-cert is "
     "given); 0: none"},
    {"zmq-port", TEXT(COMMAND_SERVE, http.zmq_port), NULL, "PORT", SERVER,
     "serve Frigate's detector of type zmq over ZeroMQ on PORT of 127.0.0.1, on ADDRESS:PORT, or "
     "on an endpoint (tcp://0.0.0.0:5555, ipc:///run/lensd/zmq); needs libzmq. Clients need no "
     "key"},
    {"zmq-timeout", SECONDS(COMMAND_SERVE, http.zmq_timeout_ms, 0, 60), "0.15", "TIME", SERVER,
     "if a message to --zmq-port has no answer after this time, its client gets zeros (no "
     "detection); must be shorter than Frigate's request_timeout_ms (200); 0: no limit"},
    {"unix", TEXT(ASKS, http.unix_path), NULL, "PATH", SERVER,
     "listen on a unix-domain socket at PATH instead of --host and --port, which must then not be "
     "given",
     "unix-domain socket of the server, instead of --host and --port"},
    {"unix-mode", TEXT(COMMAND_SERVE, unix_mode), "0660", "MODE", SERVER,
     "permissions of the socket of --unix; users who may write to it may connect"},
    {"tls-cert", TEXT(ASKS, http.tls_cert), NULL, "FILE", SERVER,
     "serve HTTPS (TLS 1.2 and 1.3) with this PEM certificate, followed by its chain; SIGHUP "
     "rereads it",
     "connect with HTTPS; the certificate is neither read nor verified"},
    {"tls-key", TEXT(COMMAND_SERVE, http.tls_key), NULL, "FILE", SERVER,
     "the certificate's private key, PEM, not encrypted"},
    {"pid-file", TEXT(COMMAND_SERVE, pid_file), NULL, "FILE", SERVER,
     "write the process id to FILE, and remove FILE at exit"},
    {"user", TEXT(COMMAND_SERVE, user), NULL, "NAME", SERVER,
     "switch from root to this user (or NAME:GROUP) once the port is open"},
    {"core-dumps", SWITCH(COMMAND_SERVE, core_dumps), SERVER,
     "allow core dumps and debuggers, which expose photos and keys"},
    {"confine", CHOICE(COMMAND_SERVE, is_unconfined), "on", "on|off", SERVER,
     "after the start, allow only the system calls, files and folders that serving needs (seccomp, "
     "Landlock) if the kernel supports it; /health shows the active restrictions"},
    {"check", SWITCH(COMMAND_SERVE, check), SERVER,
     "check settings, keys, certificate and model, then exit: 0 if valid, 2 if not, 1 if something "
     "is missing that may come later (a model, a GPU, memory)"},
    {"http-threads", NUMBER(COMMAND_SERVE, http.threads, 0, 64), "0", "N", SERVER,
     "threads that read requests and write answers; 0: one for each eight cores"},
    {"response-cache", BYTES(COMMAND_SERVE, http.response_cache, 0, 1024 * GIB), "0", "BYTES",
     SERVER,
     "cache answers, up to this many bytes in total, for repeated requests with the same body and "
     "parameters; 0: no cache"},
    {"config", TEXT(ALL | COMMAND_PULL, config_file), NULL, "FILE", SERVER,
     "read settings from a JSON file: {\"port\": 9000, \"max-body\": \"16M\"}"},

    {"api-keys", TEXT(COMMAND_SERVE, http.keys.keys_file), NULL, "FILE", ACCESS,
     "answer only requests with an API key listed in FILE (one per line: NAME sha256:HEX rate=N "
     "burst=N; lensd key creates one); SIGHUP rereads it"},
    {"admin-key-file", TEXT(COMMAND_SERVE, http.keys.admin_file), NULL, "FILE", ACCESS,
     "API keys of admins, in a file like that of --api-keys; admins may load and unload models and "
     "change the log level"},
    {"protect-health", SWITCH(COMMAND_SERVE, http.keys.protect_open), ACCESS,
     "require a key for health checks, metrics and web pages, too"},
    {"api-key-file", TEXT(COMMAND_HEALTH, api_key_file), NULL, "FILE", ACCESS,
     "send the API key in FILE (one line); for a server run with --protect-health"},
    {"cors-origin", TEXT(COMMAND_SERVE, http.cors_origin), NULL, "ORIGIN", ACCESS,
     "let web pages of this origin (https://app.example; several separated by commas; * for all) "
     "read the answers"},
    {"allowed-hosts", TEXT(COMMAND_SERVE, http.allowed_hosts), NULL, "NAME,…", ACCESS,
     "host names to answer for (the Host header), besides IP addresses and localhost; *: all; "
     "default: none on a loopback --host, which protects against DNS rebinding by web pages, else "
     "*"},
    {"trusted-proxies", TEXT(COMMAND_SERVE, http.trusted_proxies), NULL, "LIST", ACCESS,
     "proxies (10.0.0.7,192.168.0.0/16,unix) whose X-Forwarded-For is trusted: it names the client "
     "for the log, fairness, delays and shares of memory"},
    {"proxy-protocol", SWITCH(COMMAND_SERVE, http.proxy_protocol), ACCESS,
     "connections from --trusted-proxies begin with a PROXY header (version 1 or 2), which names "
     "the client; connections without one are closed"},
    {"rate", TEXT(COMMAND_KEY, key_rate), NULL, "N", ACCESS,
     "requests per second allowed with the key, such as 5 or 0.1; default: no limit"},
    {"burst", TEXT(COMMAND_KEY, key_burst), NULL, "N", ACCESS,
     "requests that may come in one burst; default: the number allowed per second"},

    {"max-body", BYTES(COMMAND_SERVE, http.max_body, 1, GIB), "64M", "BYTES", LIMITS,
     "bytes of a request body, and of a picture in an answer"},
    {"max-upload-memory", BYTES(COMMAND_SERVE, http.max_upload_memory, 1, 1024 * GIB), "512M",
     "BYTES", LIMITS,
     "bytes of all request bodies and answers held at once; an answer counts from the moment its "
     "request is accepted, at its largest possible size; the default is lowered to an eighth of "
     "the memory if that is less"},
    {"max-header", BYTES(COMMAND_SERVE, http.max_header, KIB, 64 * KIB), "16K", "BYTES", LIMITS,
     "bytes of a request line and headers"},
    {"max-inflate-ratio", NUMBER(COMMAND_SERVE, http.max_inflate_ratio, 2, 100000), "100", "N",
     LIMITS,
     "largest decompression ratio of a gzip or deflate body; bodies of up to 1 MiB after "
     "decompression may exceed it"},
    {"max-images", NUMBER(COMMAND_SERVE, http.max_images, 1, 4096), "64", "N", LIMITS,
     "images in a request"},
    {"max-queue", NUMBER(RUNS, model_host.max_queue, 1, 1000000), "256", "N", LIMITS,
     "images admitted but not yet answered, per model and input size"},
    {"max-queue-bytes", BYTES(COMMAND_SERVE, model_host.max_queue_bytes, 0, 1024 * GIB), "256M",
     "BYTES", LIMITS, "bytes of images waiting for a worker, per model; 0: no limit"},
    {"max-queue-ms", NUMBER(COMMAND_SERVE, model_host.max_queue_ms, 0, 3600000), "30000", "N",
     LIMITS,
     "predicted milliseconds until the answer; a request predicted to take longer is refused at "
     "once; 0: no limit"},
    {"max-json-depth", NUMBER(COMMAND_SERVE, http.max_json_depth, 1, 512), "64", "N", LIMITS,
     "levels of nesting in JSON"},
    {"max-pixels", NUMBER(RUNS, model_host.limits.max_pixels, 1, 1000000000), "50000000", "N",
     LIMITS, "pixels of an image, width times height"},
    {"max-side", NUMBER(RUNS, model_host.limits.max_side, 1, 65535), "16384", "N", LIMITS,
     "width or height of an image"},
    {"max-scans", NUMBER(RUNS, model_host.limits.max_scans, 1, 10000), "100", "N", LIMITS,
     "scans of a progressive JPEG"},
    {"max-connections", NUMBER(COMMAND_SERVE, http.max_connections, 1, 100000), "1024", "N", LIMITS,
     "open connections; beyond that, a new connection replaces the one that has been idle longest"},
    {"max-connections-per-address",
     NUMBER(COMMAND_SERVE, http.max_connections_per_address, 1, 100000), "512", "N", LIMITS,
     "open connections from one address"},

    {"header-timeout", SECONDS(COMMAND_SERVE, http.header_timeout_ms, 0, 3600), "10", "TIME", TIMES,
     "time limit for a request line and headers to arrive; 0: no limit"},
    {"body-timeout", SECONDS(COMMAND_SERVE, http.body_timeout_ms, 0, 3600), "60", "TIME", TIMES,
     "time limit for a request body to arrive; 0: no limit"},
    {"answer-timeout", SECONDS(COMMAND_SERVE, http.answer_timeout_ms, 0, 3600), "60", "TIME", TIMES,
     "time over which a client must read at least 4 KiB of its answer per second on average, or it "
     "is disconnected; 0: no limit"},
    {"idle-timeout", SECONDS(COMMAND_SERVE, http.idle_timeout_ms, 1, 3600), "75", "TIME", TIMES,
     "time that a connection may stay open without sending a request or reading its answer"},
    {"default-timeout", SECONDS(COMMAND_SERVE, http.default_timeout_ms, 0, 3600), "0", "TIME",
     TIMES,
     "time limit of a request without X-Request-Timeout-Ms, from its first byte to its answer; a "
     "request that cannot finish in time is refused or dropped; 0: no limit"},
    {"drain-delay", SECONDS(COMMAND_SERVE, drain_delay, 0, 3600), "0", "TIME", TIMES,
     "time between SIGTERM, when /readyz turns 503, and the closing of the port"},
    {"grace", SECONDS(COMMAND_SERVE, grace, 0, 3600), "20", "TIME", TIMES,
     "time after --drain-delay in which accepted requests are answered"},

    {"log-format", CHOICE(COMMAND_SERVE, log_format), "text", "text|json|auto", OUTPUT,
     "format of the log on standard error; auto: text on a terminal, else json"},
    {"log-level", CHOICE(COMMAND_SERVE, log_level), "info", "debug|info|warn|error", OUTPUT,
     "lowest level written; info includes one line per request, but not for probes"},
    {"trace-endpoint", TEXT(COMMAND_SERVE, trace_endpoint), NULL, "URL", OUTPUT,
     "send a trace of each request to this OpenTelemetry collector (OTLP over HTTP, as in "
     "http://localhost:4318); needs libcurl"},
    {"trace-sample", TEXT(COMMAND_SERVE, trace_sample), "1", "N", OUTPUT,
     "share of the requests that are traced, 0 to 1; for a request with a traceparent header, that "
     "header decides"},
    {"annotate", TEXT(COMMAND_PREDICT, annotate), NULL, "OUT", OUTPUT,
     "write the photos with labels, boxes, masks and points drawn: one photo to the file OUT (.jpg "
     "or .png), or all into the new folder OUT, as JPEG under their own names"},
    {"text", TEXT(COMMAND_PREDICT | COMMAND_EMBED, text), NULL, "TEXT", OUTPUT,
     "print the vector of this text as JSON, instead of answers to photos; for a model that takes "
     "texts"},
    {"labels", SWITCH(COMMAND_INSPECT, labels), OUTPUT,
     "print only the label of each class, one per line"},
    {"json", SWITCH(SHOWS | COMMAND_QUANTIZE, json), OUTPUT, "print JSON instead of a table"},
    {"jsonl", SWITCH(COMMAND_PREDICT, jsonl), OUTPUT,
     "print a line of JSON for each photo as soon as it is answered"},
};

const size_t config_option_count = COUNT_OF(config_options);
