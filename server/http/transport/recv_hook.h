/* Identifies the socket that libmicrohttpd is parsing on this thread.
 *
 * libmicrohttpd answers malformed requests itself, in HTML. It reports them to its log without
 * naming the connection. The connection is the one that it last read from, or the one that it last
 * passed to a callback. libmicrohttpd reads with recv(), so recv_hook.c defines a recv() that
 * records the socket; the dynamic linker prefers it to libc's. If libmicrohttpd reads in another
 * way (another version, or linked with libc's recv()), the socket is unknown, and libmicrohttpd's
 * own answers to malformed requests are sent. */
#pragma once

/* Returns the socket that this thread read last, or -1 if this thread has not called recv(). */
int recv_hook_fd(void);

/* Call this when the thread continues with bytes of `fd` that were read earlier. */
void recv_hook_set(int fd);
