/* Loads and replaces the certificate, gives it to GnuTLS, and sends the last bytes of a session. */
#include "server/http/transport/tls.h"

#include <gnutls/x509.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/base/file.h"

#define CHAIN_MAX    16
#define FILE_MAX     (1024 * 1024 - 1)
#define SOON_SECONDS (14 * 24 * 3600)

/* A certificate with its key; immutable once it is in use. */
struct pair {
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned count;
    gnutls_privkey_t key;
    time_t from, until;
    bool key_is_public; /* every user can read the key's file */
    struct pair *older; /* the pair that this one has replaced */
};

struct tls {
    const char *cert_file, *key_file;
    struct pair *pair; /* the newest */
};

static struct pair *_Atomic shown; /* for new handshakes */

/* ---- files ---- */

static enum status tls_read_file(const char *option, const char *path, gnutls_datum_t *ret,
                                 struct error *err)
{
    uint8_t *data;
    size_t size;
    struct error cause;
    enum status status = file_read(path, FILE_MAX, &data, &size, &cause);
    if (status != STATUS_OK)
        return error_set(err, status == STATUS_NO_MEMORY ? status : STATUS_CONFIG,
                         "cannot read %s '%.200s': %s", option, path, cause.message);
    if (size == 0) {
        free(data);
        return error_set(err, STATUS_CONFIG, "%s '%.200s' is empty", option, path);
    }
    *ret = (gnutls_datum_t){data, (unsigned)size};
    return STATUS_OK;
}

static void data_done(gnutls_datum_t *data)
{
    if (data->data)
        gnutls_memset(data->data, 0, data->size); /* it may contain a key */
    free(data->data);
    *data = (gnutls_datum_t){NULL, 0};
}

static enum status read_chain(const char *path, const gnutls_datum_t *text, struct pair *pair,
                              struct error *err)
{
    gnutls_x509_crt_t list[CHAIN_MAX];
    unsigned count = CHAIN_MAX;
    int got = gnutls_x509_crt_list_import(list, &count, text, GNUTLS_X509_FMT_PEM,
                                          GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED);
    if (got == GNUTLS_E_SHORT_MEMORY_BUFFER)
        return error_set(err, STATUS_CONFIG, "--tls-cert '%.200s' has more than %d certificates",
                         path, CHAIN_MAX);
    if (got <= 0)
        return error_set(err, STATUS_CONFIG,
                         "--tls-cert '%.200s' contains no certificate in PEM format (%s); one "
                         "begins with -----BEGIN CERTIFICATE-----",
                         path, gnutls_strerror(got < 0 ? got : GNUTLS_E_NO_CERTIFICATE_FOUND));
    count = (unsigned)got;
    pair->from = gnutls_x509_crt_get_activation_time(list[0]);
    pair->until = gnutls_x509_crt_get_expiration_time(list[0]);
    pair->count = CHAIN_MAX;
    int failure =
        gnutls_pcert_import_x509_list(pair->chain, list, &count, GNUTLS_X509_CRT_LIST_SORT);
    /* If the certificates form no chain, keep the file's order. */
    if (failure < 0)
        failure = gnutls_pcert_import_x509_list(pair->chain, list, &count, 0);
    pair->count = failure < 0 ? 0 : count;
    for (int i = 0; i < got; i++)
        gnutls_x509_crt_deinit(list[i]);
    if (failure < 0)
        return error_set(err, STATUS_CONFIG, "--tls-cert '%.200s' cannot be used: %s", path,
                         gnutls_strerror(failure));
    return STATUS_OK;
}

static enum status tls_read_key(const char *path, const gnutls_datum_t *text, struct pair *pair,
                                struct error *err)
{
    struct stat file;
    int failure = gnutls_privkey_init(&pair->key);
    if (failure < 0)
        return error_no_memory(err, "for --tls-key");
    failure = gnutls_privkey_import_x509_raw(pair->key, text, GNUTLS_X509_FMT_PEM, NULL, 0);
    pair->key_is_public = stat(path, &file) == 0 && file.st_mode & S_IROTH;
    if (failure == GNUTLS_E_DECRYPTION_FAILED)
        return error_set(err, STATUS_CONFIG,
                         "--tls-key '%.200s' is encrypted, and lensd cannot ask for its "
                         "passphrase; decrypt it: openssl pkey -in KEY -out NEW",
                         path);
    if (failure < 0)
        return error_set(err, STATUS_CONFIG,
                         "--tls-key '%.200s' contains no private key in PEM format (%s); one "
                         "begins with -----BEGIN PRIVATE KEY-----",
                         path, gnutls_strerror(failure));
    return STATUS_OK;
}

/* The key and the certificate must have the same public key. */
static enum status check_match(const struct tls *tls, const struct pair *pair, struct error *err)
{
    gnutls_pubkey_t public = NULL;
    unsigned char of_key[64], of_cert[64];
    size_t key_size = sizeof of_key, cert_size = sizeof of_cert;
    bool same = gnutls_pubkey_init(&public) == 0 &&
                gnutls_pubkey_import_privkey(public, pair->key, 0, 0) == 0 &&
                gnutls_pubkey_get_key_id(public, GNUTLS_KEYID_USE_SHA256, of_key, &key_size) == 0 &&
                gnutls_pubkey_get_key_id(pair->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, of_cert,
                                         &cert_size) == 0 &&
                key_size == cert_size && !memcmp(of_key, of_cert, key_size);
    if (public)
        gnutls_pubkey_deinit(public);
    if (same)
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG,
                     "--tls-key '%.160s' is not the key of the certificate in --tls-cert '%.160s'; "
                     "use a key and certificate that belong together",
                     tls->key_file, tls->cert_file);
}

static void pair_free(struct pair *pair)
{
    for (unsigned i = 0; i < pair->count; i++)
        gnutls_pcert_deinit(&pair->chain[i]);
    if (pair->key)
        gnutls_privkey_deinit(pair->key);
    free(pair);
}

static enum status tls_fill(const struct tls *tls, struct pair *pair, gnutls_datum_t *cert,
                            gnutls_datum_t *key, struct error *err)
{
    TRY(tls_read_file("--tls-cert", tls->cert_file, cert, err));
    TRY(tls_read_file("--tls-key", tls->key_file, key, err));
    TRY(read_chain(tls->cert_file, cert, pair, err));
    TRY(tls_read_key(tls->key_file, key, pair, err));
    return check_match(tls, pair, err);
}

enum status tls_reload(struct tls *tls, struct error *err)
{
    struct pair *pair = calloc(1, sizeof *pair);
    TRY(check_memory(pair, "for a certificate", err));
    gnutls_datum_t cert = {NULL, 0}, key = {NULL, 0};
    enum status status = tls_fill(tls, pair, &cert, &key, err);
    data_done(&cert);
    data_done(&key);
    if (status != STATUS_OK) {
        pair_free(pair);
        return status;
    }
    pair->older = tls->pair;
    tls->pair = pair;
    atomic_store(&shown, pair);
    return STATUS_OK;
}

enum status tls_create(const char *cert_file, const char *key_file, struct tls **ret,
                       struct error *err)
{
    struct tls *tls = *ret = calloc(1, sizeof *tls);
    TRY(check_memory(tls, "for TLS", err));
    tls->cert_file = cert_file;
    tls->key_file = key_file;
    return tls_reload(tls, err);
}

void tls_free(struct tls *tls)
{
    if (!tls)
        return;
    atomic_store(&shown, NULL);
    for (struct pair *pair = tls->pair, *older; pair; pair = older) {
        older = pair->older;
        pair_free(pair);
    }
    free(tls);
}

bool tls_warning(const struct tls *tls, char *text, size_t size)
{
    const struct pair *pair = tls->pair;
    time_t now = time(NULL);
    char date[32];
    struct tm parts;
    gmtime_r(now < pair->from ? &pair->from : &pair->until, &parts);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &parts);
    const char *what = NULL;
    if (now < pair->from)
        what = "is not valid before";
    else if (now >= pair->until)
        what = "expired on";
    else if (pair->until - now < SOON_SECONDS)
        what = "will expire on";
    if (what)
        snprintf(text, size, "the certificate in '%.160s' %s %s; %s", tls->cert_file, what, date,
                 now >= pair->from && now < pair->until ? "renew it soon, then send SIGHUP"
                                                        : "clients will refuse it");
    else if (pair->key_is_public)
        snprintf(text, size,
                 "every user of this machine can read --tls-key '%.160s'; run chmod 600 on it",
                 tls->key_file);
    return what || pair->key_is_public;
}

int64_t tls_expires(const struct tls *tls)
{
    return tls->pair->until;
}

/* ---- sessions ---- */

int tls_on_handshake(gnutls_session_t session, const gnutls_datum_t *names, int name_count,
                     const gnutls_pk_algorithm_t *algorithms, int algorithm_count,
                     gnutls_pcert_st **ret_chain, unsigned *ret_count, gnutls_privkey_t *ret_key)
{
    (void)session, (void)names, (void)name_count, (void)algorithms, (void)algorithm_count;
    struct pair *pair = atomic_load(&shown);
    if (!pair)
        return -1;
    *ret_chain = pair->chain;
    *ret_count = pair->count;
    *ret_key = pair->key;
    return 0;
}

bool tls_session(gnutls_certificate_credentials_t credentials, int fd, const char *protocol,
                 gnutls_session_t *ret)
{
    gnutls_datum_t name = {(unsigned char *)(uintptr_t)protocol, (unsigned)strlen(protocol)};
    gnutls_session_t session;
    if (gnutls_init(&session, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) < 0)
        return false;
    if (gnutls_priority_set_direct(session, TLS_PRIORITIES, NULL) < 0 ||
        gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, credentials) < 0 ||
        gnutls_alpn_set_protocols(session, &name, 1, GNUTLS_ALPN_MANDATORY) < 0) {
        gnutls_deinit(session);
        return false;
    }
    gnutls_transport_set_int(session, fd);
    *ret = session;
    return true;
}

void tls_send_last(gnutls_session_t session, const void *bytes, size_t size)
{
    if (gnutls_record_send(session, bytes, size) == (ssize_t)size)
        (void)gnutls_bye(session, GNUTLS_SHUT_WR);
}
