/* lensd serve: wiring and lifecycle.
 *
 *     port opens ─▶ loader thread: model, session ─▶ ready ─▶ SIGTERM, SIGINT ─▶ drain ─▶ exit 0
 *     /livez 200    /readyz 503, with progress       200      503, and after --drain-delay no
 *                                                             new connections; accepted requests
 *                                                             are answered, up to --grace
 *
 * SIGHUP rereads API keys and the certificate. If the kernel sends it because the terminal was
 * closed, the server ends as on SIGTERM, unless nohup(1) started it.
 *
 * The main thread only waits for signals and for the loader. A second signal ends the process at
 * once, unless it is equal to the first one and comes within a second: timeout(1) and a closing
 * terminal send a signal both to the process and to its group. */
#include "server/app/serve.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/base/thread.h"
#include "lensd_version.h"
#include "server/answers/tracks.h"
#include "server/app/confine.h"
#include "server/app/process.h"
#include "server/app/supervisor.h"
#include "server/faces/faces.h"
#include "server/http/api/route_table.h"
#include "server/image/image.h"
#include "server/loader/loader.h"
#include "server/observe/log.h"

/* Time after --grace in which requests that were cancelled get their error answers. */
#define LAST_WORDS_MS 1000

/* If work still runs this long after --grace, it counts as stuck, and the process ends. */
#define STUCK_MS   10000
#define STUCK_EXIT 3
#define LOOK_MS    500

/* Two equal signals within this time count as one. */
#define SAME_SIGNAL_MS 1000

/* Progress of a load is logged first after this time, then every EXTEND_MS / 2. */
#define LOADING_MS 2000

/* While models load, lensd repeatedly asks systemd to extend the start timeout by this much. */
#define EXTEND_MS 20000

struct serve {
    const struct config *config;
    struct http_options parts; /* config->http, and the members that serve.c sets */
    struct http_server *http;
    int loaded_fd; /* eventfd; the loader writes to it when the start's models are loaded */
    bool is_loaded;
    struct error load_error;

    struct process_user user;
    struct confinement confinement;
    int port; /* written to --port-file; 0: not yet */

    int signal_fd;
    int first_signal; /* the signal that began the drain; 0: none, because the load failed */
    int64_t first_signal_time;
    int64_t end_by;    /* guarded by end_lock: when end_stuck() ends the process; 0: never */
    pthread_t watcher; /* runs watch_signals() */
    bool has_watcher;
};

static pthread_mutex_t end_lock = PTHREAD_MUTEX_INITIALIZER;

static void count_reloads(struct serve *serve, int ok, int failed)
{
    const char *name = "lensd_reloads_total", *help = "Reloads of keys and certificates by SIGHUP.";
    metric_add(metrics_get(serve->parts.metrics, METRIC_COUNTER, name, help, "result=\"ok\""), ok);
    metric_add(metrics_get(serve->parts.metrics, METRIC_COUNTER, name, help, "result=\"failed\""),
               failed);
}

/* ---- setting up ---- */

/* True if nohup(1) started the process. Then a closed terminal does not end the server. Set before
 * any thread starts. */
static bool outlives_terminal;

/* Blocks signals in this thread and all later ones; serve->signal_fd reads them. */
static enum status take_signals(struct serve *serve, struct error *err)
{
    sigset_t signals;
    struct sigaction hangup;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    /* A blocked signal reaches signalfd even if it is ignored, as under nohup(1). */
    sigaddset(&signals, SIGHUP);
    outlives_terminal = sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    serve->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    serve->loaded_fd = eventfd(0, EFD_CLOEXEC);
    if (serve->signal_fd < 0 || serve->loaded_fd < 0)
        return error_set(err, STATUS_IO, "cannot wait for signals: %s", strerror(errno));
    return STATUS_OK;
}

static bool is_confined(const struct config *config)
{
    return CONFINE_IN_THIS_BUILD && !config->is_unconfined;
}

/* Restricts system calls if is_confined(), then lets clients connect. Call it after all threads
 * have started, except those of the loader and of models. */
static void confine(struct serve *serve)
{
    struct confinement *confinement = &serve->confinement;
    if (is_confined(serve->config)) {
        confine_calls(serve->config, confinement);
        log_event(confinement->missing[0] ? LOG_WARN : LOG_DEBUG, "confined",
                  LOG_STR("text", confinement->text));
    } else {
        const bool is_wanted = !serve->config->is_unconfined;
        snprintf(confinement->text, sizeof confinement->text, "off%s",
                 is_wanted ? ": this build has a sanitizer" : "");
        if (is_wanted)
            log_event(LOG_INFO, "confined", LOG_STR("text", confinement->text));
    }
    http_server_open(serve->http, confinement->text);
}

/* Creates the exporter, or with --check only checks its options. STATUS_CONFIG for an invalid
 * address or --trace-sample. */
static enum status create_traces(const struct config *config, struct http_options *parts,
                                 struct error *err)
{
    char *end;
    int port;
    const double sample = strtod(config->trace_sample, &end);
    if (end == config->trace_sample || *end || !(sample >= 0 && sample <= 1))
        return error_set(err, STATUS_CONFIG, "--trace-sample is '%.40s'; it must be 0 to 1",
                         config->trace_sample);
    if (!config->trace_endpoint)
        return STATUS_OK;
    return config->check ? trace_endpoint_port(config->trace_endpoint, &port, err)
                         : trace_exporter_create(config->trace_endpoint, sample, parts->metrics,
                                                 &parts->traces, err);
}

/* Creates what serving and --check both need. First checks that --pid-file and --port-file do not
 * name other files. loader_create() checks that the model exists. */
static enum status create_services(struct serve *serve, struct error *err)
{
    const struct config *config = serve->config;
    TRY(process_check_number_file("--pid-file", config->pid_file, true, err));
    TRY(process_check_number_file("--port-file", config->port_file, false, err));
    serve->parts = config->http;
    serve->parts.note = config->fallback;
    serve->parts.routes = &http_route_table;
    serve->parts.grpc_routes = &grpc_route_table;
    serve->parts.zmq_routes = &zmq_route_table;
    serve->parts.faces = config->faces ? faces_create(config->faces) : NULL;
    if (config->faces && !serve->parts.faces)
        return error_no_memory(err, "for the registry of faces");
    serve->parts.tracks = tracks_create();
    TRY(check_memory(serve->parts.tracks, "for tracks", err));
    serve->parts.metrics = serve->parts.keys.metrics = metrics_create();
    TRY(create_traces(config, &serve->parts, err));
    struct model_host_options model_host_options = config->model_host;
    model_host_options.metrics = serve->parts.metrics;
    model_host_options.ready_strict |= !config->loader.models; /* each stage of a pipeline */
    if (is_confined(config))
        model_host_options.worker_begin = confine_decode_worker;
    TRY(model_host_create(&model_host_options, &serve->parts.model_host, err));
    struct loader_options loader_options = config->loader;
    loader_options.model = config->model;
    loader_options.default_model = config->model_host.default_model;
    loader_options.is_immich = config->immich != NULL;
    loader_options.model_host = serve->parts.model_host;
    return loader_create(&loader_options, &serve->parts.loader, err);
}

/* Warns about files that root has read, but that --user cannot read again at SIGHUP. */
static void warn_of_reload(const struct config *config)
{
    const struct {
        const char *option, *path;
    } files[] = {{"--api-keys", config->http.keys.keys_file},
                 {"--admin-key-file", config->http.keys.admin_file},
                 {"--tls-cert", config->http.tls_cert},
                 {"--tls-key", config->http.tls_key}};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char text[400];
        if (!files[i].path || access(files[i].path, R_OK) == 0)
            continue;
        snprintf(
            text, sizeof text,
            "%s '%.200s' was read as root, but --user '%.60s' cannot read it again at SIGHUP: %s",
            files[i].option, files[i].path, config->user, strerror(errno));
        log_event(LOG_WARN, "user", LOG_STR("text", text));
    }
}

/* After this, the process opens files with the rights of --user. */
static enum status become_user(const struct serve *serve, struct error *err)
{
    const struct config *config = serve->config;
    if (config->user) {
        TRY(process_become(&serve->user, config->core_dumps, err));
        warn_of_reload(config);
    }
    if (config->cache)
        precision_check_cache(config->cache_folder);
    return STATUS_OK;
}

static enum status give_up_root(const struct serve *serve, struct error *err)
{
    const struct config *config = serve->config;
    if (config->user && config->http.unix_path &&
        chown(config->http.unix_path, serve->user.uid, serve->user.gid) != 0)
        return error_set(err, STATUS_CONFIG, "cannot give --unix '%.100s' to --user '%.60s': %s",
                         config->http.unix_path, config->user, strerror(errno));
    return become_user(serve, err);
}

static enum status set_up(struct serve *serve, struct error *err)
{
    const struct config *config = serve->config;
    const struct process_user *user = config->user ? &serve->user : NULL;
    TRY(take_signals(serve, err));
    TRY(process_find_user(config->user, &serve->user, err));
    if (is_confined(config)) {    /* before supervisor_begin(), which unsets NOTIFY_SOCKET */
        if (config->cache_folder) /* Landlock rules need folders that exist */
            process_make_folder(config->cache_folder, user);
        confine_files(config, &serve->confinement);
    }
    /* Loads the decoders while there is one thread, and starting processes is still allowed. */
    (void)image_format_missing(IMAGE_JPEG);
    if (!log_start())
        return error_set(err, STATUS_NO_MEMORY,
                         "cannot start the thread that writes the log; " THREAD_LIMIT_HINT);
    supervisor_begin();
    TRY(create_services(serve, err));
    count_reloads(serve, 0, 0); /* creates both counters, so that they start at 0 */
    TRY(http_server_start(&serve->parts, &serve->http, err));
    TRY(process_write_number("--pid-file", config->pid_file, (long)getpid(), NULL, err));
    const int port = http_server_listener(serve->http)->port;
    TRY(process_write_number("--port-file", config->port_file, port, user, err));
    serve->port = port;
    TRY(give_up_root(serve, err));
    if (serve->parts.faces)
        TRY(faces_open(serve->parts.faces, err));
    supervisor_watch(serve->parts.model_host);
    supervisor_say("STATUS=loading %s", loader_name(serve->parts.loader));
    log_event(LOG_DEBUG, "listening", LOG_STR("url", http_server_listener(serve->http)->where),
              LOG_STR("version", LENSD_VERSION));
    if (config->fallback[0])
        log_event(LOG_INFO, "device", LOG_STR("text", config->fallback));
    confine(serve);
    return loader_start(serve->parts.loader, serve->loaded_fd, err);
}

static void remove_numbers(const struct serve *serve)
{
    process_remove_number(serve->config->pid_file, (long)getpid());
    if (serve->port)
        process_remove_number(serve->config->port_file, serve->port);
}

static void tear_down(struct serve *serve)
{
    if (serve->parts.loader)
        loader_stop(serve->parts.loader);
    if (serve->parts.model_host)
        (void)model_host_drain(serve->parts.model_host, 0);
    http_server_free(serve->http);
    trace_exporter_free(serve->parts.traces);
    faces_free(serve->parts.faces);
    tracks_free(serve->parts.tracks);
    supervisor_end();
    loader_free(serve->parts.loader);
    model_host_free(serve->parts.model_host);
    metrics_free(serve->parts.metrics);
    remove_numbers(serve);
    if (serve->has_watcher) {
        pthread_cancel(serve->watcher);
        pthread_join(serve->watcher, NULL);
    }
    if (serve->signal_fd >= 0)
        close(serve->signal_fd);
    if (serve->loaded_fd >= 0)
        close(serve->loaded_fd);
}

/* ---- serving ---- */

/* Lists a model's devices: "cuda:0, cpu (2 passes at a time)". */
static void list_lanes(const struct model_status *status, char *text, size_t size, int *ret_threads)
{
    for (size_t i = 0; i < status->lane_count; i++) {
        const struct device_id device = status->lanes[i].device;
        char times[32] = "";
        int before = 0, lanes = 0; /* on this device */
        for (size_t k = 0; k < status->lane_count; k++) {
            const bool is_here = device_equal(status->lanes[k].device, device);
            before += is_here && k < i;
            lanes += is_here;
        }
        if (lanes > 1)
            snprintf(times, sizeof times, " (%d passes at a time)", lanes);
        if (!before)
            text_append(text, size, ", ", "%s%s", DEVICE_STRING(device), times);
        if (device.kind == DEVICE_CPU)
            *ret_threads = status->lanes[i].threads;
    }
}

/* Returns the default model, or else the first one that serves; NULL if there is neither. */
static const struct model_status *find_shown(const struct model_status *models, size_t count)
{
    const struct model_status *first = NULL;
    for (size_t i = 0; i < count; i++) {
        if (models[i].is_default)
            return &models[i];
        if (!first && models[i].can_answer)
            first = &models[i];
    }
    return first;
}

/* Writes "resnet50", or "ocr (stage models det, rec)". */
static void name_model(const struct model_status *status, char *text, size_t size)
{
    snprintf(text, size, "%s", status->name);
    for (size_t i = 0; i < status->stage_count; i++)
        text_append(text, size, i ? ", " : " (stage models ", "%s%s", status->stages[i],
                    i + 1 == status->stage_count ? ")" : "");
}

static void print_banner(const struct serve *serve, const struct model_status *status,
                         const char *devices, int threads)
{
    const struct listener *listener = http_server_listener(serve->http);
    const char *path = serve->config->http.unix_path;
    char with_threads[48] = "", call[sizeof listener->url + sizeof status->name + 64],
         choice[(PIPELINE_STAGES_MAX + 1) * sizeof status->name + 96] = "",
         name[(PIPELINE_STAGES_MAX + 1) * sizeof status->name + 32];
    if (!status) {
        log_banner("lensd is at %s and waits for models in %s\n", listener->where,
                   serve->config->loader.models);
        return;
    }
    if (threads > 0)
        snprintf(with_threads, sizeof with_threads, " with %d thread%s%s", threads,
                 threads == 1 ? "" : "s", strstr(devices, " passes ") ? " each" : "");
    name_model(status, name, sizeof name);
    /* For a pipeline, `devices` is "" and `threads` is 0. */
    if (status->is_default && model_host_has_choice(serve->parts.model_host))
        snprintf(choice, sizeof choice, "; requests that name no model go to %s", name);
    if (status->brief.answers_photos && !status->is_default)
        snprintf(call, sizeof call, "--data-binary @photo.jpg '%s/predict?model=%s'", listener->url,
                 status->name);
    else if (status->brief.answers_photos)
        snprintf(call, sizeof call, "--data-binary @photo.jpg %s/predict", listener->url);
    else
        snprintf(call, sizeof call, "%s/v2/models/%s", listener->url, status->name);
    log_banner("lensd serves %s at %s%s%s%s%s%s; %s:\n"
               "  curl %s%s%s%s\n",
               loader_served(serve->parts.loader), listener->where, choice,
               devices[0] ? " on " : "", devices, with_threads,
               status->is_default ? "" : "; requests must name a model (?model=NAME)",
               status->brief.answers_photos ? "try it" : "list the model's input tensors",
               path ? "--unix-socket " : "", path ? path : "", path ? " " : "", call);
}

static void say_ready(struct serve *serve)
{
    size_t count;
    struct model_status *models = model_host_snapshot(serve->parts.model_host, &count);
    const struct model_status *status = find_shown(models, count);
    char devices[DEVICE_MAX * (DEVICE_TEXT + 32)] = "";
    const char *precision = NULL;
    int threads = 0;
    if (status)
        list_lanes(status, devices, sizeof devices, &threads);
    if (status && status->lane_count > 0)
        precision = precision_name(status->lanes[status->lane_count - 1].precision);
    if (status || serve->config->loader.models)
        print_banner(serve, status, devices, threads);
    const struct log_field model = LOG_STR("model", loader_served(serve->parts.loader)),
                           chosen = LOG_STR("default",
                                            status && status->is_default ? status->name : NULL),
                           url = LOG_STR("url", http_server_listener(serve->http)->where);
    if (status && status->stage_count > 0) /* a pipeline has no device of its own */
        log_event(LOG_INFO, "ready", model, chosen, url);
    else
        log_event(LOG_INFO, "ready", model, chosen, LOG_STR("device", devices),
                  LOG_STR("precision", precision), LOG_INT("threads", threads), url);
    if (model_host_readiness(serve->parts.model_host) == MODEL_HOST_FAILED)
        log_event(LOG_WARN, "not ready",
                  LOG_STR("text", "a required model does not serve (--ready strict): /readyz "
                                  "answers 503 until it does"));
    free(models);
}

static const char *signal_name(int number)
{
    return number == SIGINT ? "SIGINT" : number == SIGHUP ? "SIGHUP" : "SIGTERM";
}

static bool is_closed_terminal(const struct signalfd_siginfo *info)
{
    return info->ssi_signo == SIGHUP && info->ssi_code == SI_KERNEL;
}

static bool is_end(const struct signalfd_siginfo *info)
{
    return info->ssi_signo == SIGHUP ? is_closed_terminal(info) && !outlives_terminal
                                     : info->ssi_signo != SIGUSR1 && info->ssi_signo != SIGUSR2;
}

/* If it is later than serve->end_by, ends the process, although the main thread still waits for
 * work. Holds the lock until the end, so that the main thread stops in set_end(). */
static void end_stuck(struct serve *serve)
{
    char models[256];
    LOCK(&end_lock);
    if (!serve->end_by || clock_now() < serve->end_by)
        return;
    (void)model_host_is_stuck(serve->parts.model_host, models, sizeof models);
    log_event(
        LOG_ERROR, "stopped", LOG_BOOL("all_answered", false),
        LOG_STR("model", models[0] ? models : NULL),
        LOG_STR("text",
                models[0]
                    ? "a pass is stuck; lensd exits without its answers"
                    : "the loader or a decoder is stuck; lensd exits without waiting for it"));
    remove_numbers(serve);
    log_flush();
    _exit(STUCK_EXIT);
}

/* The thread that ends the process at a second signal, or at serve->end_by. */
static void *watch_signals(void *context)
{
    struct serve *serve = context;
    struct signalfd_siginfo info;
    struct pollfd signals = {.fd = serve->signal_fd, .events = POLLIN};
    for (;;) {
        const int ready = poll(&signals, 1, LOOK_MS); /* pthread_cancel() ends the thread here */
        end_stuck(serve);
        if (ready <= 0 || read(serve->signal_fd, &info, sizeof info) != sizeof info)
            continue;
        if (!is_end(&info))
            continue; /* no reload or change of the log level while the server ends */
        bool again = (int)info.ssi_signo == serve->first_signal &&
                     clock_now() - serve->first_signal_time < SAME_SIGNAL_MS * NS_PER_MS;
        if (again)
            continue;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
        log_event(LOG_WARN, "stopped", LOG_STR("cause", signal_name((int)info.ssi_signo)),
                  LOG_STR("text", "second signal: exiting at once"));
        log_flush();
        _exit(128 + (int)info.ssi_signo);
    }
}

static void set_end(struct serve *serve, int64_t end_by)
{
    LOCK(&end_lock);
    serve->end_by = end_by;
}

static void drain(struct serve *serve, const char *cause)
{
    const struct config *config = serve->config;
    log_event(LOG_INFO, "draining", LOG_STR("cause", cause),
              LOG_REAL("delay_s", (double)config->drain_delay / 1000),
              LOG_REAL("grace_s", (double)config->grace / 1000));
    supervisor_say("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=%lld",
                   (long long)(config->drain_delay + config->grace + 2 * STUCK_MS) * 1000);
    const int64_t most = (config->drain_delay + config->grace + STUCK_MS) * NS_PER_MS;
    set_end(serve, clock_now() + most);
    http_server_begin_drain(serve->http);
    loader_stop(serve->parts.loader);
    set_end(serve, clock_now() + most);
    supervisor_say("EXTEND_TIMEOUT_USEC=%lld",
                   (long long)(config->drain_delay + config->grace + 2 * STUCK_MS) * 1000);
    (void)poll(NULL, 0, (int)config->drain_delay); /* sleeps; signals are blocked */
    http_server_stop_accepting(serve->http);
    int64_t deadline = clock_now() + config->grace * NS_PER_MS;
    bool quiet = http_server_wait_quiet(serve->http, deadline);
    int64_t left_ms = (deadline - clock_now()) / NS_PER_MS;
    bool all = model_host_drain(serve->parts.model_host, left_ms > 0 ? (int)left_ms : 0);
    if (!quiet)
        (void)http_server_wait_quiet(serve->http, clock_now() + LAST_WORDS_MS * NS_PER_MS);
    set_end(serve, 0);
    log_event(quiet && all ? LOG_INFO : LOG_WARN, "stopped",
              LOG_BOOL("all_answered", quiet && all));
}

/* SIGUSR1 makes the log one level more verbose, SIGUSR2 one less. */
static void change_level(int step)
{
    int before = (int)log_lowest, after = before + step;
    if (after < LOG_DEBUG || after > LOG_ERROR)
        return;
    /* The line gets the less verbose of the old and the new level, and so is always written. */
    enum log_level seen = (enum log_level)(after > before ? after : before);
    log_lowest = (enum log_level)(after < before ? after : before);
    log_event(seen, "log", LOG_STR("level", log_level_name((enum log_level)after)));
    log_lowest = (enum log_level)after;
}

static void reload(struct serve *serve)
{
    struct error err;
    supervisor_say("RELOADING=1\nMONOTONIC_USEC=%lld", /* Type=notify-reload */
                   (long long)clock_now() / 1000);
    const bool failed = http_server_reload(serve->http, &err) != STATUS_OK;
    count_reloads(serve, !failed, failed);
    if (failed)
        log_event(LOG_ERROR, "not reloaded", LOG_STR("text", err.message));
    if (serve->config->config_file)
        log_event(LOG_WARN, "config", LOG_STR("file", serve->config->config_file),
                  LOG_STR("text", "SIGHUP rereads only API keys and the certificate; restart lensd "
                                  "for changes in --config"));
    if (serve->is_loaded) /* while models load, READY would be too early */
        supervisor_say("READY=1");
}

/* Handles a signal that does not end the server. */
static void handle_signal(struct serve *serve, const struct signalfd_siginfo *info)
{
    if (info->ssi_signo != SIGHUP)
        change_level(info->ssi_signo == SIGUSR1 ? -1 : 1);
    else if (!is_closed_terminal(info))
        reload(serve);
}

/* Logs the model being loaded, its progress, and the remaining time. */
static void log_loading(const struct serve *serve)
{
    size_t count;
    struct model_status *models = model_host_snapshot(serve->parts.model_host, &count);
    for (size_t i = 0; i < count; i++)
        if (models[i].state == MODEL_LOADING && models[i].progress > 0)
            log_event(LOG_INFO, "loading", LOG_STR("model", models[i].name),
                      LOG_STR("phase", models[i].phase),
                      LOG_INT("percent", (int)(100 * models[i].progress)),
                      LOG_INT("seconds_left", models[i].seconds_left));
    free(models);
}

/* Waits for a signal that ends the server (returns its name) or for a failed load (NULL). */
static const char *wait_for_end(struct serve *serve)
{
    bool is_said = false;
    for (;;) {
        struct pollfd events[] = {
            {.fd = serve->signal_fd, .events = POLLIN},
            {.fd = serve->is_loaded ? -1 : serve->loaded_fd, .events = POLLIN}};
        struct signalfd_siginfo info;
        int ready = poll(events, 2, serve->is_loaded ? -1 : is_said ? EXTEND_MS / 2 : LOADING_MS);
        if (ready <= 0) {
            /* Keeps systemd from giving up while a large model loads. */
            if (ready == 0 && !serve->is_loaded) {
                supervisor_say("EXTEND_TIMEOUT_USEC=%d", EXTEND_MS * 1000);
                log_loading(serve);
                is_said = true;
            }
            continue;
        }
        if (events[0].revents && read(serve->signal_fd, &info, sizeof info) == sizeof info) {
            if (!is_end(&info)) {
                handle_signal(serve, &info);
                continue;
            }
            serve->first_signal = (int)info.ssi_signo;
            serve->first_signal_time = clock_now();
            return signal_name(serve->first_signal);
        }
        if (!events[1].revents)
            continue;
        uint64_t count;
        (void)!read(serve->loaded_fd, &count, sizeof count); /* clears the eventfd */
        serve->is_loaded = true;
        if (loader_outcome(serve->parts.loader, &serve->load_error) != STATUS_OK)
            return NULL;
        http_server_accept(serve->http);
        say_ready(serve);
        supervisor_say("READY=1\nSTATUS=serving %s at %s", loader_served(serve->parts.loader),
                       http_server_listener(serve->http)->where);
    }
}

/* For --check: makes all checks of a start, but opens no port. */
static enum status serve_check(struct serve *serve, struct error *err)
{
    struct http_warnings warnings;
    TRY(process_find_user(serve->config->user, &serve->user, err));
    TRY(create_services(serve, err));
    TRY(http_server_check(&serve->parts, &warnings, err));
    if (warnings.port[0])
        log_event(LOG_WARN, "port", LOG_STR("text", warnings.port));
    if (warnings.certificate[0])
        log_event(LOG_WARN, "certificate", LOG_STR("text", warnings.certificate));
    TRY(become_user(serve, err));   /* the check reads the model as --user */
    if (is_confined(serve->config)) /* the check opens only what the server may open */
        confine_files(serve->config, &serve->confinement);
    if (serve->parts.faces)
        TRY(faces_open(serve->parts.faces, err));
    return loader_try(serve->parts.loader, err);
}

/* Like process_failed(), but returns 1 for a missing model, whose file system may be mounted
 * later. */
static int serve_failed(const struct error *err)
{
    const int result = process_failed(err);
    return err->status == STATUS_NOT_FOUND ? 1 : result;
}

static int command_check(struct serve *serve)
{
    struct error err;
    enum status status = serve_check(serve, &err);
    if (status == STATUS_OK)
        printf("lensd: the settings are fine, and %s can be served\n",
               loader_name(serve->parts.loader));
    return status == STATUS_OK ? 0 : serve_failed(&err);
}

int command_serve(const struct config *config)
{
    static const char *const events[CONFIG_NOTES] = {"environment", "memory", "threads"};
    struct serve serve = {.config = config, .signal_fd = -1, .loaded_fd = -1};
    struct error err;
    log_as_json = config->log_format == CONFIG_LOG_JSON ||
                  (config->log_format == CONFIG_LOG_AUTO && !isatty(STDERR_FILENO));
    log_lowest = (enum log_level)config->log_level;
    for (size_t i = 0; i < CONFIG_NOTES; i++)
        if (config->notes[i][0])
            log_event(LOG_WARN, events[i], LOG_STR("text", config->notes[i]));
    if (config->loader.watch && !config->loader.models && !config->model)
        log_event(LOG_WARN, "watch",
                  LOG_STR("text", "--watch has no effect: the built-in model has no files"));
    if (config->model_host.ready_strict && !config->loader.models)
        log_event(LOG_WARN, "ready",
                  LOG_STR("text", "--ready strict has no effect without --models: lensd ends if "
                                  "its model does not load"));
    process_protect(config->core_dumps);
    int result = 0;
    if (config->check) {
        result = command_check(&serve);
    } else if (set_up(&serve, &err) != STATUS_OK) {
        result = serve_failed(&err);
    } else {
        const char *cause = wait_for_end(&serve);
        serve.has_watcher = pthread_create(&serve.watcher, NULL, watch_signals, &serve) == 0;
        if (cause)
            drain(&serve, cause);
        else {
            supervisor_say("STATUS=%s", serve.load_error.message);
            result = serve_failed(&serve.load_error);
        }
    }
    tear_down(&serve);
    log_flush();
    return result;
}
