/* Reports to systemd (sd_notify(3)): ready, stopping, reloading, and the watchdog.
 *
 * Each report is a datagram to the socket in NOTIFY_SOCKET; without that variable nothing is sent.
 * With WATCHDOG_USEC a thread checks the models four times in this period. The thread sends
 * WATCHDOG=1 as long as every model for which images wait keeps answering. If a lane, a worker or a
 * scheduler is stuck, the thread sends nothing, and systemd restarts lensd. */
#pragma once

#include "server/schedule/runtime/model_host.h"

/* Reads NOTIFY_SOCKET and WATCHDOG_USEC, and removes them from the environment. */
void supervisor_begin(void);

/* Starts the watchdog for `model_host`, if systemd set WATCHDOG_USEC. */
void supervisor_watch(struct model_host *model_host);

/* Ends the watchdog. Call it before the model host is freed. */
void supervisor_end(void);

/* Sends one or several lines such as "READY=1"; arguments as for printf(). */
void supervisor_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
