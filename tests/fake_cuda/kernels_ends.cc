#include "engine/cuda/ends.cu"
