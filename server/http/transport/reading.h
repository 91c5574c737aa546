/* Which socket a thread is working on.
 *
 * libmicrohttpd answers broken requests by itself, in HTML, and tells only its log, but not which
 * connection it means. It is the one that it has just read, or that was last handed to one of its
 * callbacks. It reads with recv(), so this part has a recv() of its own, which the dynamic linker
 * puts in the place of libc's. */
#pragma once

/* The socket that this thread has read last; -1: none. */
int reading_fd(void);

/* The thread goes on with bytes of this socket that were read earlier. */
void reading_set(int fd);
