/* TLS: the certificate the server shows, exchangeable while it runs.
 *
 * libmicrohttpd drives the handshakes through GnuTLS and asks tls_on_handshake() which certificate
 * to show; tls_reload() exchanges it for those that come. Handshakes under way keep what they got:
 * an exchanged certificate (some kilobytes) is freed when the server ends.
 *
 * One at a time in a process, because GnuTLS gives that callback nothing to find its owner by. */
#pragma once

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine/base/status.h"

/* TLS 1.2 and 1.3, forward secrecy, authenticated ciphers. */
#define TLS_PRIORITIES                                                                             \
    "NONE:+VERS-TLS1.3:+VERS-TLS1.2:+AES-256-GCM:+AES-128-GCM:+CHACHA20-POLY1305:+AEAD:"           \
    "+ECDHE-ECDSA:+ECDHE-RSA:+GROUP-X25519:+GROUP-SECP256R1:+GROUP-SECP384R1:+SIGN-ALL:"           \
    "-SIGN-RSA-SHA1:-SIGN-ECDSA-SHA1:-SIGN-DSA-SHA1:+COMP-NULL:+CTYPE-X509:%SERVER_PRECEDENCE"

struct tls;

/* Reads a certificate (PEM, the chain behind it in any order) and its key (PEM, not encrypted).
 * STATUS_CONFIG with a sentence that names the file: not there, no PEM, an encrypted key, a key of
 * another certificate. The paths are borrowed. */
enum status tls_create(const char *cert_file, const char *key_file, struct tls **ret,
                       struct error *err) MUST_USE;

/* Only after the last handshake. NULL is fine. */
void tls_free(struct tls *tls);

/* Reads the files again. On failure the certificate stays. From one thread at a time. */
enum status tls_reload(struct tls *tls, struct error *err) MUST_USE;

/* What is wrong with a certificate that can be shown all the same: it has expired, will within two
 * weeks, is not valid yet; or the key can be read by everybody. False: nothing. */
bool tls_warning(const struct tls *tls, char *text, size_t size);

/* When it expires; seconds since 1970. */
int64_t tls_expires(const struct tls *tls);

/* For MHD_OPTION_HTTPS_CERT_CALLBACK (a gnutls_certificate_retrieve_function2). */
int tls_on_handshake(gnutls_session_t session, const gnutls_datum_t *names, int name_count,
                     const gnutls_pk_algorithm_t *algorithms, int algorithm_count,
                     gnutls_pcert_st **ret_chain, unsigned *ret_count, gnutls_privkey_t *ret_key);

/* For connections that lensd drives without libmicrohttpd: what they show, freed by
 * gnutls_certificate_free_credentials() after the last; and a session for a socket that does not
 * block, which agrees on `protocol` (ALPN) and is freed by gnutls_deinit(). False: no memory. */
bool tls_credentials(gnutls_certificate_credentials_t *ret);
bool tls_session(gnutls_certificate_credentials_t credentials, int fd, const char *protocol,
                 gnutls_session_t *ret);

/* Called whenever the session is about to read; must live as long as the session. */
struct tls_reader {
    int fd;
    void (*look)(void *context);
    void *context;
    uint64_t bytes;             /* read from the socket so far */
    _Atomic uint64_t handshake; /* bytes of the handshake; 0: it is not over */
};

/* Before the handshake: from now on the thread that drives the session calls reader->look before it
 * reads from the socket, however little has come. */
void tls_watch(gnutls_session_t session, struct tls_reader *reader);

/* Sends `bytes` as they are and says that nothing more will come. Only from the thread that drives
 * the session. A client that does not read gets less, or nothing. */
void tls_send_last(gnutls_session_t session, const void *bytes, size_t size);
