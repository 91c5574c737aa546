/* What systemd is told (sd_notify(3)): ready, stopping, reloading, and that it still works.
 *
 * The protocol is a datagram to the socket that NOTIFY_SOCKET names; without it nothing happens.
 * With WATCHDOG_USEC a thread of its own looks at the models four times in that span, and says
 * WATCHDOG=1 only as long as images are answered wherever some wait. When a lane, a worker or a
 * scheduler is stuck it falls silent, and systemd starts lensd anew. */
#pragma once

#include <stdbool.h>

#include "server/schedule/runtime/model_host.h"

struct supervisor;

/* NULL when out of memory; every function takes that, and does nothing. Reads the environment, and
 * takes the two variables out of it. */
struct supervisor *supervisor_create(void);
void supervisor_free(struct supervisor *supervisor);

/* Watches over `model_host` until supervisor_free, which comes first. Only when systemd asked. */
void supervisor_watch(struct supervisor *supervisor, struct model_host *model_host);

/* "READY=1", several with line ends between them; printf's arguments. */
void supervisor_say(struct supervisor *supervisor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Before and after a reload; the second one with READY=1. */
void supervisor_reloading(struct supervisor *supervisor);
