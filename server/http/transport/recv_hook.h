/* Observes what libmicrohttpd reads. It reads with recv(), or with gnutls_record_recv() under TLS.
 * recv_hook.c defines both; the dynamic linker prefers these to the functions of the libraries.
 *
 * libmicrohttpd answers malformed requests itself, in HTML. It reports them to its log without
 * naming the connection. The connection is the one that it last read from, or the one that it last
 * passed to a callback. The table of connections learns when the first bytes of a request arrive,
 * and where libmicrohttpd's memory is (connections_note_read()).
 *
 * If libmicrohttpd reads in another way (another version, or linked with libc's recv()), the socket
 * is unknown: then libmicrohttpd's own answers to malformed requests are sent, and headers have no
 * time limit but --idle-timeout. */
#pragma once

struct connections;

/* Tells the table about everything that this thread reads. */
void recv_hook_start(struct connections *connections);

/* Returns the socket that this thread read last, or -1 if this thread has not called recv(). */
int recv_hook_fd(void);

/* Call this when the thread continues with bytes of `fd` that were read earlier. */
void recv_hook_set(int fd);
