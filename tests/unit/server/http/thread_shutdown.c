/* The order in which the HTTP server's threads end: the watcher of connections before the event
 * loops, each of which stops its libmicrohttpd on its own thread; what recv_hook.c keeps for each
 * thread; and what has been read of a connection that goes on sending. A plain program, so that it
 * also runs under ThreadSanitizer. */
#include <arpa/inet.h>
#include <dirent.h>
#include <microhttpd.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/event_loop.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/recv_hook.h"
#include "server/http/transport/request_log.h"
#include "tests/unit/tap.h"

/* ---- an event loop ---- */

static pthread_t opened_on, closed_on;
static sem_t opened;

static void note_connection(void *context, struct MHD_Connection *connection, void **socket_context,
                            enum MHD_ConnectionNotificationCode what)
{
    (void)context, (void)connection, (void)socket_context;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        closed_on = pthread_self();
        return;
    }
    opened_on = pthread_self();
    CHECK(!sem_post(&opened));
}

static enum MHD_Result refuse(void *context, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *body,
                              size_t *size, void **request)
{
    (void)context, (void)connection, (void)url, (void)method, (void)version, (void)body;
    (void)size, (void)request;
    return MHD_NO;
}

static struct sockaddr_in listen_on_loopback(int *ret)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    *ret = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(*ret >= 0);
    CHECK(!bind(*ret, (const struct sockaddr *)&address, sizeof address));
    CHECK(!listen(*ret, 4));
    CHECK(!getsockname(*ret, (struct sockaddr *)&address, &size));
    return address;
}

static int connect_to(const struct sockaddr_in *address)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !connect(fd, (const struct sockaddr *)address, sizeof *address));
    return fd;
}

/* Its callbacks use variables of the thread that drives the daemon. */
static void test_a_daemon_stops_on_the_thread_of_its_loop(void)
{
    int listening;
    const struct sockaddr_in address = listen_on_loopback(&listening);
    static struct http_server server;
    struct event_loop loop = {.server = &server, .listen_fd = listening, .limit = 8};
    CHECK(!sem_init(&opened, 0, 0));
    struct MHD_Daemon *mhd = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, refuse,
        NULL, MHD_OPTION_NOTIFY_CONNECTION, note_connection, NULL, MHD_OPTION_END);
    CHECK(mhd && event_loop_start(&loop, mhd));
    event_loop_accept(&loop, true);
    const int client = connect_to(&address);
    CHECK(!sem_wait(&opened));
    CHECK(!pthread_equal(opened_on, pthread_self()));
    closed_on = pthread_self();
    event_loop_stop(&loop);
    CHECK(pthread_equal(closed_on, opened_on));
    /* Other loops may still listen there. */
    const int another = connect_to(&address);
    close(another);
    close(client);
    close(listening);
}

/* ---- recv_hook.c ---- */

/* Where libmicrohttpd does not read with that recv(), a refusal must not go to some other socket.
 */
static void test_the_socket_is_unknown_before_recv(void)
{
    int pair[2];
    char byte;
    CHECK(recv_hook_fd() == -1);
    recv_hook_set(7);
    CHECK(recv_hook_fd() == -1);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && write(pair[0], "x", 1) == 1);
    CHECK(recv(pair[1], &byte, 1, 0) == 1 && recv_hook_fd() == pair[1]);
    recv_hook_set(7);
    CHECK(recv_hook_fd() == 7);
    close(pair[0]);
    close(pair[1]);
}

/* ---- the watcher ---- */

static size_t count_threads(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder);
    for (const struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void test_the_watcher_ends_before_connections_close(void)
{
    struct error err;
    int listening;
    bool accepts;
    struct exchange *resumed;
    struct model_host *model_host;
    const struct model_host_options host_options = {.device_count = 1, .workers = 1};
    CHECK(model_host_create(&host_options, &model_host, &err) == STATUS_OK);
    struct http_server server = {.options = {.max_connections_per_address = 4,
                                             .idle_timeout_ms = 60000,
                                             .model_host = model_host},
                                 .log = request_log_create(NULL, &(struct route_table){0})};
    const size_t before = count_threads();
    struct connections *connections = connections_create(&server);
    struct event_loop loop = {.limit = 4};
    const struct sockaddr_in address = listen_on_loopback(&listening);
    CHECK(server.log && connections && connections_start(connections, &err) == STATUS_OK);
    CHECK(count_threads() == before + 1);
    const int client = connect_to(&address);
    struct connection *connection =
        connection_open(connections, &(struct connection){.fd = client, .loop = &loop},
                        (const struct sockaddr *)&address);
    CHECK(connection);
    CHECK(inbox_init(&loop.inbox, true));
    connection->exchange = &(struct exchange){.inbox = &loop.inbox};
    CHECK(connection_delay(connection, clock_now() + INT64_C(3600000000000)));
    connections_end_delays(connections);
    connections_stop(connections);
    CHECK(inbox_take(&loop.inbox, &resumed, &accepts));
    CHECK(resumed == connection->exchange && !resumed->next_resumed);
    /* A thread that was joined may be listed for a moment more. */
    while (count_threads() > before)
        usleep(1000);
    CHECK(!connection_delay(connection, 0));
    connections_stop(connections); /* does nothing */
    connection_close(connection);
    connections_free(connections);
    request_log_free(server.log);
    model_host_free(model_host);
    CHECK(inbox_take(&loop.inbox, &resumed, &accepts) && !resumed);
    inbox_done(&loop.inbox);
    close(client);
    close(listening);
}

/* A drain does not end before it, even if the connection's loop has had no time for it. */
static void test_a_request_that_nobody_has_read_is_seen(void)
{
    struct http_server server = {
        .options = {.max_connections = 4, .max_connections_per_address = 4}};
    struct event_loop loop = {.limit = 4};
    struct connections *connections = connections_create(&server);
    int listening;
    const struct sockaddr_in address = listen_on_loopback(&listening);
    CHECK(connections);
    for (int is_admin = 0; is_admin < 2; is_admin++) {
        const int client = connect_to(&address);
        const struct connection given = {
            .fd = accept(listening, NULL, NULL), .loop = &loop, .is_admin = is_admin};
        struct connection *connection =
            connection_open(connections, &given, (const struct sockaddr *)&address);
        char byte;
        CHECK(connection && !connections_have_unread(connections));
        CHECK(send(client, "x", 1, 0) == 1);
        CHECK(recv(given.fd, &byte, 1, MSG_PEEK) == 1); /* it has arrived */
        CHECK(connections_have_unread(connections) == !is_admin);
        CHECK(recv(given.fd, &byte, 1, 0) == 1);
        CHECK(!connections_have_unread(connections));
        connection_close(connection);
        close(given.fd);
        close(client);
    }
    connections_free(connections);
    close(listening);
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"the socket is unknown before recv() is called", test_the_socket_is_unknown_before_recv},
        {"a daemon stops on the thread of its loop", test_a_daemon_stops_on_the_thread_of_its_loop},
        {"the watcher ends before connections close",
         test_the_watcher_ends_before_connections_close},
        {"a request that nobody has read is seen", test_a_request_that_nobody_has_read_is_seen},
    };
    return tap_run(tests, COUNT_OF(tests), NULL);
}
