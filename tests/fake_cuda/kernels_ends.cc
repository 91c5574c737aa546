#include "engine/cuda/kernels/ends.cu"
