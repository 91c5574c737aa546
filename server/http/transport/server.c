/* Starts, reloads, drains and stops the HTTP server. */
#include "server/http/transport/server.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/http/transport/admit.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/event_loop.h"
#include "server/http/transport/grpc.h"
#include "server/http/transport/proxy_pending.h"
#include "server/http/transport/request_log.h"
#include "server/http/transport/tls.h"
#include "server/http/transport/zmq.h"
#include "server/observe/log.h"

#define QUIET_MS 200 /* time without a request before a drain ends */

/* The time without a request before a drain ends while no connection is open. In this time clients
 * whose handshake began before listen_stop() can be accepted, except distant ones. */
#define HANDSHAKE_MS 20

/* Raises the limit of open files to fit every connection; returns how many fit. */
static size_t fit_connections(size_t wanted)
{
    const size_t others = 64; /* log, epoll, models, libraries */
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted + others)
        return wanted;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max < wanted + others ? limit.rlim_max : wanted + others;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        limit.rlim_cur = before;
    if (limit.rlim_cur >= wanted + others)
        return wanted;
    size_t fitting = limit.rlim_cur > 2 * others ? limit.rlim_cur - others : others;
    log_event(LOG_WARN, "fewer connections",
              LOG_STR("why", "the limit of open files (ulimit -n) is too low"),
              LOG_INT("wanted", wanted), LOG_INT("connections", fitting));
    return fitting < wanted ? fitting : wanted;
}

static void look_at_certificate(struct http_server *server)
{
    char text[400];
    metric_set(server->certificate_expires, (double)tls_expires(server->tls));
    if (tls_warning(server->tls, text, sizeof text))
        log_event(LOG_WARN, "certificate", LOG_STR("text", text));
}

static enum status open_tls(struct http_server *server, struct error *err)
{
    const struct http_options *options = &server->options;
    if (!options->tls_cert)
        return STATUS_OK;
    TRY(tls_create(options->tls_cert, options->tls_key, &server->tls, err));
    server->certificate_expires =
        metrics_get(options->metrics, METRIC_GAUGE, "lensd_tls_certificate_expires_seconds",
                    "When the certificate expires, in seconds since 1970.", "");
    look_at_certificate(server);
    return STATUS_OK;
}

/* Opens the listener of --admin-port or --grpc-port, if there is such a port. */
static enum status open_other(const struct http_options *options, const char *option, int port,
                              const char *event, struct listener *ret, struct error *err)
{
    const struct listen_place place = {options, option, port};
    if (!port)
        return STATUS_OK;
    TRY(listen_open(&place, ret, err));
    log_event(LOG_INFO, event, LOG_STR("url", ret->url));
    return STATUS_OK;
}

static enum status open_listeners(struct http_server *server, struct error *err)
{
    const struct http_options *options = &server->options;
    const struct listen_place place = {options, "--port", options->port};
    TRY(listen_take_passed(options->tls_cert, &server->listener, err));
    if (!server->listener.is_passed)
        TRY(listen_open(&place, &server->listener, err));
    if (options->grpc_port)
        TRY(grpc_check(err));
    TRY(open_other(options, "--grpc-port", options->grpc_port, "grpc port", &server->grpc, err));
    return open_other(options, "--admin-port", options->admin_port, "admin port", &server->admin,
                      err);
}

static enum status check_texts(const struct http_options *options, struct trusted_proxies *ret,
                               struct error *err)
{
    TRY(trusted_proxies_parse(options->trusted_proxies, ret, err));
    if (options->proxy_protocol && !options->trusted_proxies)
        return error_set(err, STATUS_CONFIG,
                         "--proxy-protocol needs --trusted-proxies: the proxies whose connections "
                         "begin with a PROXY header");
    return admit_check_hosts(options->allowed_hosts, err);
}

static enum status server_start(struct http_server *server, struct error *err)
{
    const struct http_options *options = &server->options;
    const size_t admin = options->admin_port ? CONNECTION_ADMIN + CONNECTION_SPARE : 0;
    const size_t unread =
        options->proxy_protocol ? (size_t)options->threads * PROXY_PENDING_MAX : 0;
    const size_t most = options->max_connections, others = CONNECTION_SPARE + admin;
    const size_t fitting = fit_connections(most + others + unread);
    if (fitting < most + others)
        server->options.max_connections = fitting > others ? fitting - others : 1;
    server->log = request_log_create(options->metrics, options->routes);
    TRY(check_memory(server->log, "for the HTTP server", err));
    TRY(check_texts(options, &server->proxies, err));
    TRY(keyring_create(&options->keys, &server->keys, err));
    if (options->response_cache)
        TRY(response_cache_create(options->response_cache, options->metrics, &server->cache, err));
    server->connections = connections_create(server);
    TRY(check_memory(server->connections, NULL, err));
    TRY(connections_start(server->connections, err));
    TRY(offload_create(&server->offload, err));
    TRY(open_tls(server, err));
    TRY(open_listeners(server, err));
    if (!options->allowed_hosts)
        server->options.allowed_hosts = server->listener.is_loopback ? "" : "*";
    TRY(daemon_start(server, err));
    if (server->grpc.fd >= 0)
        TRY(grpc_start(server, err));
    if (options->zmq_port)
        TRY(zmq_start(server, err));
    return STATUS_OK;
}

enum status http_server_start(const struct http_options *options, struct http_server **ret,
                              struct error *err)
{
    struct http_server *server = calloc(1, sizeof *server);
    TRY(check_memory(server, "for the HTTP server", err));
    server->options = *options;
    server->listener.fd = server->admin.fd = server->grpc.fd = -1;
    server->budget.limit = options->max_upload_memory;
    for (size_t i = 0; i < COUNT_OF(server->shares); i++) {
        server->shares[i].limit = options->max_upload_memory - options->max_upload_memory / 4;
        server->shares[i].whole = &server->budget;
    }
    server->started = clock_now();
    pthread_mutex_init(&server->gate, NULL);
    pthread_mutex_lock(&server->gate);
    if (getrandom(&server->id_seed, sizeof server->id_seed, 0) != sizeof server->id_seed)
        server->id_seed = (uint64_t)clock_now();
    enum status status = server_start(server, err);
    if (status != STATUS_OK) {
        http_server_free(server);
        return status;
    }
    *ret = server;
    return STATUS_OK;
}

enum status http_server_check(const struct http_options *options,
                              struct http_warnings *ret_warnings, struct error *err)
{
    struct keyring *keys = NULL;
    struct trusted_proxies proxies;
    struct tls *tls = NULL;
    const struct listen_place places[] = {{options, "--port", options->port},
                                          {options, "--admin-port", options->admin_port},
                                          {options, "--grpc-port", options->grpc_port}};
    *ret_warnings = (struct http_warnings){.port = ""};
    if (options->grpc_port)
        TRY(grpc_check(err));
    if (options->zmq_port)
        TRY(zmq_check(options, err));
    for (size_t i = 0; i < COUNT_OF(places); i++)
        if ((i == 0 || places[i].port) && !ret_warnings->port[0])
            TRY(listen_check(&places[i], ret_warnings->port, sizeof ret_warnings->port, err));
    TRY(check_texts(options, &proxies, err));
    enum status status = keyring_create(&options->keys, &keys, err);
    keyring_free(keys);
    if (status != STATUS_OK || !options->tls_cert)
        return status;
    status = tls_create(options->tls_cert, options->tls_key, &tls, err);
    if (status == STATUS_OK)
        (void)tls_warning(tls, ret_warnings->certificate, sizeof ret_warnings->certificate);
    tls_free(tls);
    return status;
}

enum status http_server_reload(struct http_server *server, struct error *err)
{
    size_t keys, admins;
    /* Reload both even if one fails: a broken key file must not block a new certificate. */
    enum status status = keyring_reload(server->keys, err), tls = STATUS_OK;
    if (server->tls) {
        tls = tls_reload(server->tls, status == STATUS_OK ? err : NULL);
        if (tls == STATUS_OK) /* a warning about the old certificate was logged before */
            look_at_certificate(server);
    }
    if (status != STATUS_OK || tls != STATUS_OK)
        return status != STATUS_OK ? status : tls;
    keyring_count(server->keys, &keys, &admins);
    log_event(LOG_INFO, "reloaded", LOG_INT("keys", keys), LOG_INT("admin_keys", admins));
    return STATUS_OK;
}

const struct listener *http_server_listener(const struct http_server *server)
{
    return &server->listener;
}

static void open_gate(struct http_server *server)
{
    if (server->is_open)
        return;
    server->is_open = true;
    pthread_mutex_unlock(&server->gate);
}

void http_server_open(struct http_server *server, const char *confinement)
{
    server->confinement = confinement;
    open_gate(server);
    daemon_accept(server, true, true);
    if (!server->listener.is_passed)
        http_server_accept(server);
}

void http_server_begin_drain(struct http_server *server)
{
    atomic_store(&server->draining, 1);
    connections_end_delays(server->connections);
}

void http_server_accept(struct http_server *server)
{
    daemon_accept(server, false, true);
}

void http_server_stop_accepting(struct http_server *server)
{
    if (server->grpc_server) {
        if (!listen_stop(&server->grpc))
            (void)shutdown(server->grpc.fd, SHUT_RDWR);
        grpc_begin_end(server->grpc_server);
    }
    if (server->zmq_server)
        zmq_begin_end(server->zmq_server);
    if (!server->listener.is_passed && listen_stop(&server->listener))
        return;
    daemon_accept(server, false, false);
    server->is_quiesced = true;
    /* Fallback: clients that are connected but not accepted are lost. Clients of a passed socket
     * wait for the next process. */
    if (!server->listener.is_passed)
        (void)shutdown(server->listener.fd, SHUT_RDWR);
}

/* True if some clients of --port or --grpc-port are not accepted yet. */
static bool someone_waits(const struct http_server *server)
{
    struct pollfd waiting[] = {
        {.fd = server->is_quiesced ? -1 : server->listener.fd, .events = POLLIN},
        {.fd = server->grpc.fd, .events = POLLIN}};
    return poll(waiting, COUNT_OF(waiting), 0) > 0 &&
           (waiting[0].revents | waiting[1].revents) & POLLIN;
}

bool http_server_wait_quiet(struct http_server *server, int64_t deadline)
{
    /* No event announces that a client will send nothing more. Silence is the only sign, so this
     * polls a clock and does not use a condition variable. */
    const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    int64_t quiet_since = clock_now();
    for (;;) {
        size_t open, busy;
        connections_count(server->connections, &open, &busy);
        int64_t now = clock_now();
        if (someone_waits(server) || busy > 0 || zmq_is_busy(server->zmq_server))
            quiet_since = now;
        else if (clock_ms(now - quiet_since) >=
                 (open + daemon_unread(server) > 0 ? QUIET_MS : HANDSHAKE_MS)) {
            /* On a busy machine a loop may still have to read a request that arrived long ago. */
            if (!connections_have_unread(server->connections))
                return true;
            quiet_since = now;
        }
        if (now >= deadline)
            return false;
        nanosleep(&pause, NULL);
    }
}

void http_server_free(struct http_server *server)
{
    if (!server)
        return;
    open_gate(server);
    offload_stop(server->offload); /* no request may wait for a job when the connections close */
    if (server->connections) {
        connections_end_delays(server->connections);
        connections_stop(server->connections); /* the watcher may be about to resume a connection */
    }
    grpc_stop(server->grpc_server);
    zmq_stop(server->zmq_server);
    daemon_stop(server);
    const int fds[] = {server->listener.fd, server->admin.fd, server->grpc.fd};
    for (size_t i = 0; i < COUNT_OF(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    connections_free(server->connections);
    listen_remove(&server->listener);
    tls_free(server->tls);
    request_log_free(server->log);
    offload_free(server->offload);
    keyring_free(server->keys);
    response_cache_free(server->cache);
    pthread_mutex_destroy(&server->gate);
    free(server);
}
