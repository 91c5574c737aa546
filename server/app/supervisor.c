/* Sends state and watchdog messages to systemd (sd_notify). */
#include "server/app/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "server/observe/log.h"

static struct {
    struct sockaddr_un address;
    socklen_t address_size; /* 0: no supervisor */
    int fd;                 /* sends to `address` */
    int stop_fd;            /* an eventfd, readable when `thread` must end */

    int64_t limit_ns; /* WATCHDOG_USEC; 0: no watchdog */
    struct model_host *model_host;
    pthread_t thread;
    bool has_thread;
    /* Only `thread` uses these. */
    int64_t looked; /* clock_now() of the last round */
    int64_t awake;  /* the wait of images counts only from this clock_now() on */
    bool is_stuck;
} supervisor;

/* Sets the address to `path`: an absolute path, or "@name" in the abstract namespace. */
static bool take_address(const char *path)
{
    size_t length = path ? strlen(path) : 0;
    if (length < 2 || length >= sizeof supervisor.address.sun_path ||
        (path[0] != '/' && path[0] != '@'))
        return false;
    supervisor.address.sun_family = AF_UNIX;
    memcpy(supervisor.address.sun_path, path, length + 1);
    if (path[0] == '@')
        supervisor.address.sun_path[0] = '\0';
    supervisor.address_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    return true;
}

/* Returns the watchdog's interval; 0 if systemd set none, or if WATCHDOG_PID is another process. */
static int64_t watchdog_ns(void)
{
    const char *span = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    char *end = NULL;
    if (pid && strtol(pid, NULL, 10) != (long)getpid())
        return 0;
    long long microseconds = span ? strtoll(span, &end, 10) : 0;
    bool sound =
        span && end != span && !*end && microseconds > 0 && microseconds < INT64_MAX / 1000;
    return sound ? microseconds * 1000 : 0;
}

void supervisor_begin(void)
{
    supervisor.fd = supervisor.stop_fd = -1;
    if (take_address(getenv("NOTIFY_SOCKET"))) {
        supervisor.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        supervisor.stop_fd = eventfd(0, EFD_CLOEXEC);
        supervisor.limit_ns = watchdog_ns();
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
}

void supervisor_end(void)
{
    if (supervisor.has_thread) {
        (void)eventfd_write(supervisor.stop_fd, 1);
        pthread_join(supervisor.thread, NULL);
        supervisor.has_thread = false;
    }
}

void supervisor_say(const char *format, ...)
{
    char text[1024];
    va_list args;
    if (!supervisor.address_size)
        return;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length <= 0)
        return;
    size_t size = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
    ssize_t sent = sendto(supervisor.fd, text, size, MSG_NOSIGNAL,
                          (const struct sockaddr *)&supervisor.address, supervisor.address_size);
    if (sent < 0)
        log_event(LOG_DEBUG, "systemd", LOG_STR("text", strerror(errno)));
}

/* Checks all models once. Returns false if a pass is stuck, or if images have waited for a model
 * for longer than limit_ns while the model answered none. */
static bool supervisor_look(void)
{
    size_t count;
    struct model_status *models = model_host_snapshot(supervisor.model_host, &count);
    const int64_t now = clock_now();
    char names[256];
    bool stuck = model_host_is_stuck(supervisor.model_host, names, sizeof names);
    if (stuck && !supervisor.is_stuck)
        log_event(LOG_ERROR, "stuck", LOG_STR("model", names),
                  LOG_STR("text", "a pass does not end; lensd stops notifying systemd's watchdog"));
    /* If the last round was long ago, the whole process was stopped: no fault of a model. */
    if (now - supervisor.looked > supervisor.limit_ns / 2)
        supervisor.awake = now - supervisor.limit_ns / 2;
    supervisor.looked = now;
    for (size_t i = 0; i < count; i++) {
        const struct model_status *model = &models[i];
        const int64_t awake = now - supervisor.awake,
                      still = model->still_ns < awake ? model->still_ns : awake;
        if (still <= supervisor.limit_ns)
            continue;
        stuck = true;
        if (!supervisor.is_stuck)
            log_event(
                LOG_ERROR, "stuck", LOG_STR("model", model->name),
                LOG_INT("images", model->queued + model->in_flight),
                LOG_REAL("seconds", clock_ms(still) / 1000),
                LOG_STR("text", "no image was answered; lensd stops notifying systemd's watchdog"));
    }
    free(models);
    supervisor.is_stuck = stuck;
    return !stuck;
}

static void *supervisor_thread(void *context)
{
    (void)context;
    const lldiv_t pause = lldiv(supervisor.limit_ns / 4, 1000 * NS_PER_MS);
    const struct timespec interval = {.tv_sec = pause.quot, .tv_nsec = pause.rem};
    struct pollfd stop = {.fd = supervisor.stop_fd, .events = POLLIN};
    do
        if (supervisor_look())
            supervisor_say("WATCHDOG=1");
    while (ppoll(&stop, 1, &interval, NULL) <= 0);
    return NULL;
}

void supervisor_watch(struct model_host *model_host)
{
    if (supervisor.limit_ns == 0)
        return;
    supervisor.model_host = model_host;
    supervisor.looked = clock_now();
    supervisor.has_thread = supervisor.stop_fd >= 0 &&
                            thread_start(&supervisor.thread, "supervisor", supervisor_thread, NULL);
    if (!supervisor.has_thread)
        log_event(LOG_WARN, "systemd",
                  LOG_STR("text", "cannot start the watchdog thread; systemd may restart lensd"));
}
