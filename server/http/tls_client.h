/* The other side of TLS, as far as `lensd health` needs it. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

/* A client's session over `fd`, handshake done, for `lensd health`: whoever answers is taken as it
 * is, its certificate is not looked at. NULL when there is no handshake to be had. */
struct tls_client;
struct tls_client *tls_client_open(int fd);
ssize_t tls_client_send(struct tls_client *client, const void *bytes, size_t size);
ssize_t tls_client_receive(struct tls_client *client, void *bytes, size_t size);
void tls_client_free(struct tls_client *client); /* leaves fd open; NULL is fine */
