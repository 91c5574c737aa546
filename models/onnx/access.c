/* Explains why a file or folder cannot be read. */
#include "models/onnx/access.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/size.h"

/* True if ProtectHome= hides the path: systemd replaces these folders by empty ones without
 * permissions. */
static bool is_in_hidden_home(const char *path)
{
    static const char *const homes[] = {"/home", "/root", "/run/user"};
    for (size_t i = 0; i < COUNT_OF(homes); i++) {
        struct stat info;
        const size_t size = strlen(homes[i]);
        if (!strncmp(path, homes[i], size) && (path[size] == '/' || !path[size]) &&
            stat(homes[i], &info) == 0 && !(info.st_mode & 0777))
            return true;
    }
    return false;
}

/* True if a file, or its folder, is a link. */
static bool is_behind_link(const char *path)
{
    char folder[PATH_MAX];
    struct stat info;
    path_folder(path, folder);
    return (lstat(path, &info) == 0 && S_ISLNK(info.st_mode)) ||
           (lstat(folder, &info) == 0 && S_ISLNK(info.st_mode));
}

const char *access_advice(const char *path, int error)
{
    switch (error) {
    case EACCES:
    case EPERM:
        if (is_in_hidden_home(path))
            return "; the service may not see home folders (ProtectHome= of its unit): move the "
                   "model, to /srv/lensd for example";
        if (is_behind_link(path))
            return "; it is a link, and lensd follows links within the folder of models only: put "
                   "the model there, or start lensd with --confine off and let its user read it";
        return "; let the user that lensd runs as read it (chmod a+r FILE, a+rx for each folder "
               "above it)";
    case ENOENT:
    case ENOTDIR:
        return "; check the path";
    case EMFILE:
    case ENFILE:
        return "; raise the limit of open files (ulimit -n)";
    case EIO:
        return "; the disk cannot read it: copy the model again";
    default:
        return "";
    }
}
