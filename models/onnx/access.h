/* Private to models/: what to do about a file or folder that cannot be read. */
#pragma once

#include <errno.h>

/* The end of a sentence that gives strerror(error); "" where there is nothing to advise. */
static inline const char *access_advice(int error)
{
    switch (error) {
    case EACCES:
    case EPERM:
        return "; let the user that lensd runs as read it (chmod a+r FILE, a+rx for each folder "
               "above it), or, if it is a link that leads out of the folder of models, put the "
               "model "
               "there (--confine off follows links)";
    case ENOENT:
    case ENOTDIR:
        return "; check the path";
    case EMFILE:
    case ENFILE:
        return "; raise the limit of open files (ulimit -n)";
    case EIO:
        return "; the disk does not give it: copy the model again";
    default:
        return "";
    }
}
