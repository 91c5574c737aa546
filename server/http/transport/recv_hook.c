/* Defines recv() to note the socket of each call. */
#undef _FORTIFY_SOURCE /* it defines recv() inline */
#include "server/http/transport/recv_hook.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

static _Thread_local int last = -1;
static _Thread_local bool notes_reads; /* recv() has been called on this thread */

ssize_t recv(int fd, void *bytes, size_t size, int flags)
{
    last = fd;
    notes_reads = true;
    return recvfrom(fd, bytes, size, flags, NULL, NULL);
}

int recv_hook_fd(void)
{
    return notes_reads ? last : -1;
}

void recv_hook_set(int fd)
{
    last = fd;
}
