/* Observes what libmicrohttpd reads. It reads with recv(), or with gnutls_record_recv() under TLS.
 * recv_hook.c defines both, and the dynamic linker prefers these functions to the libraries' own.
 *
 * libmicrohttpd answers malformed requests itself, in HTML. It reports them to its log without
 * naming the connection. The connection is the one that libmicrohttpd last read from, or the one
 * that it last passed to a callback. connections_note_read() learns from the hook when the first
 * bytes of a request arrive, and the address of libmicrohttpd's memory pool.
 *
 * If libmicrohttpd reads in another way (another version, or linked with libc's recv()), the socket
 * is unknown: then libmicrohttpd's own answers to malformed requests are sent, and headers have no
 * time limit but --idle-timeout. */
#pragma once

struct connections;

/* Makes later reads on this thread call connections_note_read(). */
void recv_hook_start(struct connections *connections);

/* Returns the socket of this thread's last read or recv_hook_set(); -1 before its first read. */
int recv_hook_fd(void);

/* Call this when the thread continues with bytes of `fd` that were read earlier. */
void recv_hook_set(int fd);
