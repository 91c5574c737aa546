/* A minimal TLS client for `lensd health`. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

/* Opens a client session over `fd` and completes the handshake. The server's certificate is not
 * verified. NULL when the handshake fails. */
struct tls_client;
struct tls_client *tls_client_open(int fd);
ssize_t tls_client_send(struct tls_client *client, const void *bytes, size_t size);
ssize_t tls_client_receive(struct tls_client *client, void *bytes, size_t size);
void tls_client_free(struct tls_client *client); /* leaves fd open; NULL is fine */
