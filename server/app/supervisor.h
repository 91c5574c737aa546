/* Reports to systemd (sd_notify(3)): ready, stopping, reloading, and the watchdog.
 *
 * Each report is a datagram to the socket in NOTIFY_SOCKET; without that variable nothing is sent.
 * With WATCHDOG_USEC a thread checks the models four times in this period. The thread sends
 * WATCHDOG=1 as long as every model for which images wait keeps answering. If a lane, a worker or a
 * scheduler is stuck, the thread sends nothing, and systemd restarts lensd. */
#pragma once

#include <stdbool.h>

#include "server/schedule/runtime/model_host.h"

struct supervisor;

/* Reads NOTIFY_SOCKET and WATCHDOG_USEC, and removes them from the environment. Returns NULL when
 * out of memory; every function accepts NULL and then does nothing. */
struct supervisor *supervisor_create(void);
void supervisor_free(struct supervisor *supervisor);

/* Starts the watchdog for `model_host`, if systemd set WATCHDOG_USEC. Call supervisor_free() before
 * the model host is freed. */
void supervisor_watch(struct supervisor *supervisor, struct model_host *model_host);

/* Sends one or several lines such as "READY=1"; arguments as for printf(). */
void supervisor_say(struct supervisor *supervisor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
