/* The tuning store: its table, its file, and whatever may be found in place of that file. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/backend/tuning_store.h"
#include "engine/base/size.h"

static struct graph_hash key_of(uint64_t a, uint64_t b)
{
    return (struct graph_hash){{a, b}};
}

static void count_entry(void *context, const struct graph_hash *key, const char *text)
{
    (void)key;
    (void)text;
    ++*(size_t *)context;
}

static size_t count_entries(enum tuning_kind kind)
{
    size_t count = 0;
    tuning_each(kind, count_entry, &count);
    return count;
}

static const char *text_of(enum tuning_kind kind, struct graph_hash key)
{
    static char text[TUNING_TEXT];
    return tuning_find(kind, &key, text) ? text : NULL;
}

static void keep(enum tuning_kind kind, struct graph_hash key, const char *text)
{
    tuning_keep(kind, &key, text);
}

static void write_to(const char *folder)
{
    struct error err = {0};
    cr_assert_eq(tuning_write(folder, &err), STATUS_OK, "%s", err.message);
}

static void read_from(const char *folder)
{
    struct error err = {0};
    cr_assert_eq(tuning_read(folder, &err), STATUS_OK, "%s", err.message);
}

static const char *new_folder(void)
{
    static char folder[] = "/tmp/lensd-tuning-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    return folder;
}

/* The path of the only file in the folder; "" where there is none. */
static const char *only_file(const char *folder)
{
    static char path[512];
    DIR *dir = opendir(folder);
    int count = 0;
    path[0] = '\0';
    cr_assert_not_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        count++;
    }
    closedir(dir);
    cr_assert_leq(count, 1);
    return path;
}

static char *read_bytes(const char *path, size_t *ret_size)
{
    static char bytes[1 << 16];
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "%s", path);
    *ret_size = fread(bytes, 1, sizeof bytes - 1, file);
    bytes[*ret_size] = '\0';
    fclose(file);
    return bytes;
}

static void write_bytes(const char *path, const char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    cr_assert_eq(fclose(file), 0);
}

Test(tuning_store, keeps_texts_by_kind_and_key)
{
    cr_expect_null(text_of(TUNING_PRECISION, key_of(1, 2)));
    keep(TUNING_PRECISION, key_of(1, 2), "winograd");
    keep(TUNING_CUDA, key_of(1, 2), "3 9");
    cr_expect_str_eq(text_of(TUNING_PRECISION, key_of(1, 2)), "winograd");
    cr_expect_str_eq(text_of(TUNING_CUDA, key_of(1, 2)), "3 9");
    cr_expect_null(text_of(TUNING_PRECISION, key_of(2, 1)));
    keep(TUNING_PRECISION, key_of(1, 2), "gemm");
    cr_expect_str_eq(text_of(TUNING_PRECISION, key_of(1, 2)), "gemm");
    for (uint64_t i = 0; i < 5000; i++)
        keep(TUNING_CUDA, key_of(i % 7, i), i % 2 ? "odd" : "even");
    cr_expect_eq(count_entries(TUNING_CUDA), 5001);
    cr_expect_str_eq(text_of(TUNING_CUDA, key_of(4999 % 7, 4999)), "odd");
    cr_expect_eq(count_entries(TUNING_PRECISION), 1);
    char long_text[TUNING_TEXT + 1];
    memset(long_text, 'x', TUNING_TEXT);
    long_text[TUNING_TEXT] = '\0';
    keep(TUNING_PRECISION, key_of(0, 0), long_text);
    cr_expect_null(text_of(TUNING_PRECISION, key_of(0, 0)));
    long_text[TUNING_TEXT - 1] = '\0';
    keep(TUNING_PRECISION, key_of(0, 0), long_text);
    cr_expect_str_eq(text_of(TUNING_PRECISION, key_of(0, 0)), long_text);
    tuning_forget();
    cr_expect_null(text_of(TUNING_CUDA, key_of(1, 2)));
}

Test(tuning_store, forgets_the_oldest_when_it_is_full)
{
    enum { MOST = 8192 };
    for (uint64_t i = 0; i < MOST; i++)
        keep(TUNING_PRECISION, key_of(1, i), "winograd");
    keep(TUNING_PRECISION, key_of(1, 5), "gemm"); /* is there already */
    cr_expect_not_null(text_of(TUNING_PRECISION, key_of(1, 0)));
    keep(TUNING_PRECISION, key_of(2, 0), "gemm");
    keep(TUNING_PRECISION, key_of(2, 1), "gemm");
    cr_expect_eq(count_entries(TUNING_PRECISION), MOST);
    cr_expect_null(text_of(TUNING_PRECISION, key_of(1, 1)));
    cr_expect_str_eq(text_of(TUNING_PRECISION, key_of(1, 2)), "winograd");
    cr_expect_str_eq(text_of(TUNING_PRECISION, key_of(1, 5)), "gemm");
    cr_expect_str_eq(text_of(TUNING_PRECISION, key_of(2, 1)), "gemm");
}

Test(tuning_store, a_full_file_takes_what_is_measured_later)
{
    enum { MOST = 8192 };
    const char *folder = new_folder();
    for (uint64_t i = 0; i < MOST; i++)
        keep(TUNING_PRECISION, key_of(1, i), "winograd");
    write_to(folder);
    for (uint64_t start = 0; start < 2; start++) {
        tuning_forget();
        read_from(folder);
        keep(TUNING_PRECISION, key_of(2, start), "gemm");
        write_to(folder);
    }
    tuning_forget();
    read_from(folder);
    cr_expect_eq(count_entries(TUNING_PRECISION), MOST);
    cr_expect_null(text_of(TUNING_PRECISION, key_of(1, 1)));
    cr_expect_not_null(text_of(TUNING_PRECISION, key_of(1, 2)));
    cr_expect_not_null(text_of(TUNING_PRECISION, key_of(2, 0)));
    cr_expect_not_null(text_of(TUNING_PRECISION, key_of(2, 1)));
}

Test(tuning_store, a_later_start_reads_what_was_written)
{
    char deep[64];
    snprintf(deep, sizeof deep, "%s/a/b", new_folder());
    read_from(deep); /* no folder: no error */
    keep(TUNING_PRECISION, key_of(1, UINT64_MAX), "winograd");
    keep(TUNING_PRECISION, key_of(3, 4), "several\nlines\n\nend 0\n");
    keep(TUNING_CUDA, key_of(5, 6), "");
    write_to(deep);
    tuning_forget();
    read_from(deep);
    cr_expect_str_eq(text_of(TUNING_PRECISION, key_of(1, UINT64_MAX)), "winograd");
    cr_expect_str_eq(text_of(TUNING_PRECISION, key_of(3, 4)), "several\nlines\n\nend 0\n");
    cr_expect_str_eq(text_of(TUNING_CUDA, key_of(5, 6)), "");
}

Test(tuning_store, a_load_saves_into_the_folder_that_was_read)
{
    const char *folder = new_folder();
    keep(TUNING_CUDA, key_of(1, 2), "3 9");
    tuning_save(); /* into none yet */
    cr_expect_str_empty(only_file(folder));
    read_from(folder);
    tuning_save();
    tuning_forget();
    read_from(folder);
    cr_expect_str_eq(text_of(TUNING_CUDA, key_of(1, 2)), "3 9");
}

/* Nothing new, no write: a folder that cannot be written to is no error then. */
Test(tuning_store, writes_only_news)
{
    struct error err = {0};
    const char *folder = new_folder();
    write_to(folder);
    cr_expect_str_empty(only_file(folder));
    keep(TUNING_PRECISION, key_of(1, 2), "winograd");
    write_to(folder);
    keep(TUNING_PRECISION, key_of(1, 2), "winograd");
    read_from(folder);
    cr_expect_eq(tuning_write("/proc/nowhere", &err), STATUS_OK);
    keep(TUNING_PRECISION, key_of(1, 2), "gemm");
    cr_expect_eq(tuning_write("/proc/nowhere", &err), STATUS_IO);
    cr_expect(strstr(err.message, "/proc/nowhere"), "%s", err.message);
    cr_expect_eq(tuning_write("/proc/nowhere", &err), STATUS_IO, "what failed is forgotten");
}

/* What this process measured wins until it is written; then whoever wrote last. */
Test(tuning_store, reading_keeps_what_is_not_written_yet)
{
    const char *folder = new_folder();
    keep(TUNING_CUDA, key_of(1, 1), "first");
    keep(TUNING_CUDA, key_of(2, 2), "first");
    write_to(folder);
    const pid_t other = fork();
    if (other == 0) {
        keep(TUNING_CUDA, key_of(1, 1), "second");
        keep(TUNING_CUDA, key_of(2, 2), "second");
        struct error err;
        _exit(tuning_write(folder, &err) == STATUS_OK ? 0 : 1);
    }
    int ended = -1;
    cr_assert_eq(waitpid(other, &ended, 0), other);
    cr_assert_eq(ended, 0);
    keep(TUNING_CUDA, key_of(2, 2), "third");
    read_from(folder);
    cr_expect_str_eq(text_of(TUNING_CUDA, key_of(1, 1)), "second");
    cr_expect_str_eq(text_of(TUNING_CUDA, key_of(2, 2)), "third");
    write_to(folder);
    tuning_forget();
    read_from(folder);
    cr_expect_str_eq(text_of(TUNING_CUDA, key_of(2, 2)), "third");
}

/* Each writes many times, and nothing of any of them is lost. */
Test(tuning_store, processes_write_at_once)
{
    enum { PROCESSES = 4, WRITES = 25 };
    const char *folder = new_folder();
    pid_t children[PROCESSES];
    for (uint64_t p = 0; p < PROCESSES; p++) {
        children[p] = fork();
        if (children[p] != 0)
            continue;
        for (uint64_t w = 0; w < WRITES; w++) {
            struct error err;
            keep(TUNING_PRECISION, key_of(p, w), "winograd");
            if (tuning_write(folder, &err) != STATUS_OK)
                _exit(1);
        }
        _exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int ended = -1;
        cr_assert_eq(waitpid(children[p], &ended, 0), children[p]);
        cr_expect_eq(ended, 0);
    }
    read_from(folder);
    cr_expect_eq(count_entries(TUNING_PRECISION), PROCESSES * WRITES);
    cr_expect_str_not_empty(only_file(folder));
}

static void expect_damaged(const char *folder, const char *what, size_t at)
{
    struct error err = {0};
    tuning_forget();
    cr_expect_eq(tuning_read(folder, &err), STATUS_IO, "%s %zu", what, at);
    cr_expect_eq(count_entries(TUNING_PRECISION) + count_entries(TUNING_CUDA), 0, "%s %zu", what,
                 at);
}

Test(tuning_store, a_damaged_file_is_as_good_as_none)
{
    struct error err = {0};
    static char damaged[1 << 16];
    size_t size;
    const char *folder = new_folder();
    keep(TUNING_PRECISION, key_of(1, 2), "winograd");
    keep(TUNING_CUDA, key_of(3, 4), "3 9");
    write_to(folder);
    const char *path = only_file(folder), *bytes = read_bytes(path, &size);
    for (size_t i = 0; i < size; i++) {
        memcpy(damaged, bytes, size);
        damaged[i] ^= 4;
        write_bytes(path, damaged, size);
        expect_damaged(folder, "byte", i);
        write_bytes(path, bytes, i);
        expect_damaged(folder, "length", i);
    }
    memcpy(damaged, bytes, size);
    damaged[size] = '\n';
    write_bytes(path, damaged, size + 1);
    expect_damaged(folder, "length", size + 1);
    cr_assert_eq(tuning_read(folder, &err), STATUS_IO);
    cr_expect(strstr(err.message, path), "%s", err.message);
    /* The next write puts it right. */
    keep(TUNING_PRECISION, key_of(5, 6), "gemm");
    write_to(folder);
    tuning_forget();
    read_from(folder);
    cr_expect_eq(count_entries(TUNING_PRECISION), 1);
}

/* A file whose last line is right for the lines before it. */
static void write_summed(const char *path, const char *lines)
{
    struct graph_hash sum = {{0, 0}};
    char *text = NULL;
    graph_hash_bytes(&sum, lines, strlen(lines));
    const int size = asprintf(&text, "%send %016lx%016lx\n", lines, sum.words[0], sum.words[1]);
    cr_assert_geq(size, 0);
    write_bytes(path, text, (size_t)size);
    free(text);
}

Test(tuning_store, takes_no_other_lines)
{
#define HASH "00112233445566778899aabbccddeeff"
    static const char *const lines[] = {
        "words\n",
        "precisions " HASH " 1 x\n",
        "precision " HASH " 1 x",
        "precision " HASH " 2 x\n",
        "precision " HASH " 0 x\n",
        "precision " HASH " -1 x\n",
        "precision " HASH "  1 x\n",
        "precision " HASH " 4096 x\n",
        "precision " HASH " 99999999999999999999 x\n",
        "precision " HASH "0 1 x\n",
        "precision 0011 1 x\n",
        "precision\n",
    };
    char head[128], text[512];
    size_t size;
    const char *folder = new_folder();
    keep(TUNING_PRECISION, key_of(1, 2), "winograd");
    write_to(folder);
    const char *path = only_file(folder), *bytes = read_bytes(path, &size);
    snprintf(head, sizeof head, "%.*s", (int)(strchr(bytes, '\n') + 1 - bytes), bytes);
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        snprintf(text, sizeof text, "%s%s", head, lines[i]);
        write_summed(path, text);
        expect_damaged(folder, lines[i], i);
        /* A bad line keeps the good ones before it out, too. */
        snprintf(text, sizeof text, "%sprecision " HASH " 1 x\n%s", head, lines[i]);
        write_summed(path, text);
        expect_damaged(folder, lines[i], i);
    }
    snprintf(text, sizeof text, "%sprecision " HASH " 1 x\n", head);
    write_summed(path, text);
    read_from(folder);
    cr_expect_str_eq(text_of(TUNING_PRECISION, key_of(0x0011223344556677, 0x8899aabbccddeeff)),
                     "x");
    /* Of another build or CPU, under this one's name; and under its own. */
    char *digit = strrchr(head, '\n') - 1;
    *digit = *digit == '0' ? '1' : '0';
    snprintf(text, sizeof text, "%sprecision " HASH " 1 x\n", head);
    write_summed(path, text);
    expect_damaged(folder, "another build", 0);
    char *other = strdup(path);
    other[strlen(other) - 1] = *digit;
    cr_assert_eq(rename(path, other), 0);
    read_from(folder);
    cr_expect_eq(count_entries(TUNING_PRECISION), 0);
    free(other);
}

/* A file that holds more lines than any table was not written by lensd. Looking up each of a
 * million lines would stop the start for minutes. */
Test(tuning_store, reads_no_more_lines_than_a_table_has)
{
    enum { LINE = 64, MOST = 8192 };
    size_t size;
    const char *folder = new_folder();
    keep(TUNING_PRECISION, key_of(1, 2), "winograd");
    write_to(folder);
    const char *path = only_file(folder), *bytes = read_bytes(path, &size);
    char *lines = calloc(MOST + 3, LINE);
    cr_assert_not_null(lines);
    size_t used = (size_t)(strchr(bytes, '\n') + 1 - bytes);
    memcpy(lines, bytes, used);
    for (unsigned i = 0; i < MOST; i++)
        used += (size_t)snprintf(lines + used, LINE, "precision %032x 1 x\n", i);
    write_summed(path, lines);
    tuning_forget();
    read_from(folder);
    cr_expect_eq(count_entries(TUNING_PRECISION), MOST);
    snprintf(lines + used, LINE, "precision %032x 1 x\n", MOST);
    write_summed(path, lines);
    expect_damaged(folder, "lines", MOST + 1);
    free(lines);
}

/* A start may meet anything under the file's name, and waits for nobody. */
Test(tuning_store, reads_nothing_but_files)
{
    struct error err = {0};
    const char *folder = new_folder();
    keep(TUNING_PRECISION, key_of(1, 2), "winograd");
    write_to(folder);
    const char *path = only_file(folder);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkdir(path, 0700), 0);
    expect_damaged(folder, "a folder", 0);
    cr_assert_eq(rmdir(path), 0);
    cr_assert_eq(symlink("/dev/zero", path), 0);
    expect_damaged(folder, "a device", 0);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkfifo(path, 0600), 0);
    expect_damaged(folder, "a FIFO", 0);
    keep(TUNING_PRECISION, key_of(1, 2), "winograd");
    cr_assert_eq(tuning_write(folder, &err), STATUS_OK, "%s", err.message); /* takes its place */
    tuning_forget();
    read_from(folder);
    cr_expect_str_eq(text_of(TUNING_PRECISION, key_of(1, 2)), "winograd");
}

Test(tuning_store, a_full_disk_leaves_the_file_as_it_was)
{
    struct rlimit limit;
    struct error err = {0};
    const char *folder = new_folder();
    keep(TUNING_PRECISION, key_of(1, 2), "winograd");
    write_to(folder);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){100, limit.rlim_max}), 0);
    keep(TUNING_PRECISION, key_of(3, 4), "gemm");
    cr_expect_eq(tuning_write(folder, &err), STATUS_IO);
    cr_expect(strstr(err.message, "File too large"), "%s", err.message);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    (void)only_file(folder); /* no half of another */
    tuning_forget();
    read_from(folder);
    cr_expect_eq(count_entries(TUNING_PRECISION), 1);
    keep(TUNING_PRECISION, key_of(3, 4), "gemm");
    write_to(folder);
    tuning_forget();
    read_from(folder);
    cr_expect_eq(count_entries(TUNING_PRECISION), 2);
}

Test(tuning_store, folder_of_the_user)
{
    setenv("XDG_CACHE_HOME", "/somewhere", 1);
    setenv("HOME", "/tmp", 1);
    char *folder = tuning_folder(NULL);
    cr_expect_str_eq(folder, "/somewhere/lensd");
    free(folder);
    setenv("XDG_CACHE_HOME", "relative", 1);
    folder = tuning_folder(NULL);
    cr_expect_str_eq(folder, "/tmp/.cache/lensd");
    free(folder);
    setenv("HOME", "/tmp/no such home", 1);
    cr_expect_null(tuning_folder(NULL));
    unsetenv("HOME");
    cr_expect_null(tuning_folder(NULL));
    cr_expect_null(tuning_folder("none"));
    folder = tuning_folder("here");
    cr_expect_str_eq(folder, "here");
    free(folder);
}
