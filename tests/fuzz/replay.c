/* Runs a fuzz target over files instead of libFuzzer: fuzz_NAME FILE|FOLDER…
 *
 * The name of each file is printed before it runs, so that a crash says which one it was. Exit 77
 * where there is nothing to run. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/target.h"

static size_t replayed;

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void replay_file(const char *path)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &info) || !S_ISREG(info.st_mode)) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    size_t size = (size_t)info.st_size;
    uint8_t *data = malloc(size ? size : 1); /* exact, so that ASan sees a byte too far */
    if (!data || fread(data, 1, size, file) != size) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    fclose(file);
    printf("%s\n", path);
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    replayed++;
}

static void replay_folder(const char *path)
{
    DIR *dir = opendir(path);
    char **names = NULL;
    size_t count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char **bigger = realloc(names, (count + 1) * sizeof *names);
        if (entry->d_name[0] == '.' || !bigger) {
            names = bigger ? bigger : names;
            continue;
        }
        names = bigger;
        if (asprintf(&names[count], "%s/%s", path, entry->d_name) < 0)
            exit(1);
        count++;
    }
    if (dir)
        closedir(dir);
    if (count)
        qsort(names, count, sizeof *names, by_text);
    for (size_t i = 0; i < count; i++) {
        replay_file(names[i]);
        free(names[i]);
    }
    free(names);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct stat info;
        if (!stat(argv[i], &info) && S_ISDIR(info.st_mode))
            replay_folder(argv[i]);
        else
            replay_file(argv[i]);
    }
    printf("%zu files replayed\n", replayed);
    return replayed ? 0 : 77;
}
