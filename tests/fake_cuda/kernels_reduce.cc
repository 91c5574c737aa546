#include "engine/cuda/kernels/reduce.cu"
