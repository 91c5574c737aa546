/* Defines recv() and gnutls_record_recv() to note what libmicrohttpd reads. */
#undef _FORTIFY_SOURCE /* the macro makes headers define recv() inline */
#include "server/http/transport/recv_hook.h"

#include <gnutls/gnutls.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "server/http/transport/connections.h"

static _Thread_local int last = -1;
static _Thread_local bool notes_reads; /* a function of this file has been called on this thread */
static _Thread_local struct connections *table;

ssize_t recv(int fd, void *bytes, size_t size, int flags)
{
    last = fd;
    notes_reads = true;
    const ssize_t got = recvfrom(fd, bytes, size, flags, NULL, NULL);
    if (got > 0 && table)
        connections_note_read(table, fd, bytes);
    return got;
}

/* libmicrohttpd calls this function for decrypted bytes. connections.c reads the encrypted bytes.
 */
ssize_t gnutls_record_recv(gnutls_session_t session, void *bytes, size_t size)
{
    unsigned char sequence[8];
    gnutls_transport_ptr_t reader, fd;
    gnutls_transport_get_ptr2(session, &reader, &fd);
    last = (int)(intptr_t)fd;
    notes_reads = true;
    const ssize_t got = gnutls_record_recv_seq(session, bytes, size, sequence);
    if (got > 0 && table)
        connections_note_read(table, last, bytes);
    return got;
}

void recv_hook_start(struct connections *connections)
{
    table = connections;
}

int recv_hook_fd(void)
{
    return notes_reads ? last : -1;
}

void recv_hook_set(int fd)
{
    last = fd;
}
